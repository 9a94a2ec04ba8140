// The terms of a formula. With them the update of an optimizer reads as in its paper:
//
//   const Term m = beta1 * u.state(0) + (1 - beta1) * u.g();
//
// A term is a number that is known when the graph is built, an f64 scalar that is known when it runs, or a tensor.
// Operations of known numbers are computed immediately. A scalar is converted to the dtype of a tensor and broadcast.
// If one of two tensors with equally many dimensions has an extent of 1, it is repeated. For the authors of op blocks
// only.

#pragma once

#include "core/builder.h"

namespace lockstep::ops {

class Term {
 public:
  Term(double number) : number_(number) {}  // NOLINT(google-explicit-constructor): 1 - beta1
  // `value` may be null after an error of the builder.
  Term(Builder& b, Value value) : b_(&b), value_(value) {}

  bool is_number() const { return b_ == nullptr; }
  // True if the term is a known number and equal to `number`.
  bool Is(double number) const { return is_number() && number_ == number; }
  // The term as a value of `type`.
  Value As(Builder& b, const TensorType& type) const;

  // A product with a known factor 0 is 0, whatever the other factor is: an option that is 0 has no effect, even on an
  // infinite weight.
  friend Term operator+(const Term& x, const Term& y);
  friend Term operator-(const Term& x, const Term& y);
  friend Term operator*(const Term& x, const Term& y);
  friend Term operator/(const Term& x, const Term& y);
  friend Term Sqrt(const Term& x);
  friend Term Rsqrt(const Term& x);
  friend Term Abs(const Term& x);
  friend Term Sign(const Term& x);  // -1, 0 or 1
  friend Term Max(const Term& x, const Term& y);
  friend Term Min(const Term& x, const Term& y);
  // x > y ? yes : no, elementwise.
  friend Term IfGreater(const Term& x, const Term& y, const Term& yes, const Term& no);

  // x^(y * share) and 1 - x^y of scalars, for x above 0. The second avoids the loss of precision of 1 - 0.999 in f32.
  // They are computed in `dtype`, f64 or f32; the result is f64. In f32, `share` multiplies log(x), so that all numbers
  // that are known are one.
  friend Term Power(const Term& x, const Term& y, const Term& share, DType dtype);
  friend Term OneMinusPower(const Term& x, const Term& y, DType dtype);

  // Combinations of the elements of a tensor. Norm is the 2-norm, a scalar; it squares in f64, in which the square of
  // an f32 cannot overflow. Mean is the mean along a dimension, -1 being the last, whose extent becomes 1. For an empty
  // tensor both are 0.
  friend Term Norm(const Term& x);
  friend Term Mean(const Term& x, int64_t dim);
  // Operations of matrices.
  friend Term Transposed(const Term& x);
  friend Term Product(const Term& x, const Term& y);

 private:
  static Builder& BuilderOf(const Term& x, const Term& y) { return x.is_number() ? *y.b_ : *x.b_; }
  bool is_null() const { return b_ != nullptr && !value_; }
  bool is_scalar() const;
  // Two terms, converted to one type.
  struct Pair {
    Value x, y;
  };
  static Pair Match(const Term& x, const Term& y);
  static Term Binary(std::string_view op, const Term& x, const Term& y);
  Term Unary(std::string_view op) const { return Term(*b_, b_->Unary(op, value_)); }
  Term UnaryInF32(std::string_view op) const;  // requires a scalar
  Term Converted(DType dtype) const { return Term(*b_, b_->Convert(value_, dtype)); }
  static Term LogOfPower(const Term& x, const Term& y, const Term& share);

  Builder* b_ = nullptr;
  Value value_;
  double number_ = 0;
};

Term Power(const Term& x, const Term& y, const Term& share, DType dtype);
// beta^step / (1 - beta^step) for a known beta, without loss of precision where the power is close to 1. `dtype` is as
// in OneMinusPower.
Term PowerOverRest(double beta, const Term& step, DType dtype);

}  // namespace lockstep::ops
