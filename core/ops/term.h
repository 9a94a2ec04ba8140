// The terms of a formula, so that the update of an optimizer reads as its paper writes it:
//
//   const Term m = beta1 * u.state(0) + (1 - beta1) * u.g();
//
// A term is a number that is known when the program is made; a scalar that it is given when it runs, in f64; or a
// tensor. What is known is computed at once. A scalar meets a tensor in the tensor's dtype, broadcast; and where one of
// two tensors of as many dimensions has an extent of 1, it is repeated. For the authors of op blocks only.

#pragma once

#include "core/builder.h"

namespace lockstep::ops {

class Term {
 public:
  Term(double number) : number_(number) {}  // NOLINT(google-explicit-constructor): 1 - beta1
  // `value` may be null, after an error of the builder.
  Term(Builder& b, Value value) : b_(&b), value_(value) {}

  bool is_number() const { return b_ == nullptr; }
  // Whether it is known to be this number.
  bool Is(double number) const { return is_number() && number_ == number; }
  // It as a value of the type.
  Value As(Builder& b, const TensorType& type) const;

  // A factor of 0 that is known makes the product 0, whatever the other factor holds: an option that is 0 has no
  // effect, also on a weight that is infinite.
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
  // x > y ? yes : no, element by element.
  friend Term IfGreater(const Term& x, const Term& y, const Term& yes, const Term& no);

  // Of scalars: x^y and 1 - x^y, for x above 0, the second without the digits that 1 - 0.999 loses in f32. `dtype` is
  // what they are computed in, f64 or f32; the result is f64.
  friend Term Power(const Term& x, const Term& y, DType dtype);
  friend Term OneMinusPower(const Term& x, const Term& y, DType dtype);

  // Of a tensor, whose elements meet: its 2-norm, a scalar, of squares in f64, which hold those of every f32; and the
  // mean along a dimension, of which -1 is the last, and whose extent is then 1. Of nothing both are 0.
  friend Term Norm(const Term& x);
  friend Term Mean(const Term& x, int64_t dim);
  // Of matrices.
  friend Term Transposed(const Term& x);
  friend Term Product(const Term& x, const Term& y);

 private:
  static Builder& BuilderOf(const Term& x, const Term& y) { return x.is_number() ? *y.b_ : *x.b_; }
  bool is_null() const { return b_ != nullptr && !value_; }
  bool is_scalar() const;
  // The two in one type.
  struct Pair {
    Value x, y;
  };
  static Pair Match(const Term& x, const Term& y);
  static Term Binary(std::string_view op, const Term& x, const Term& y);
  Term Unary(std::string_view op) const { return Term(*b_, b_->Unary(op, value_)); }
  Term UnaryInF32(std::string_view op) const;  // of a scalar
  Term Converted(DType dtype) const { return Term(*b_, b_->Convert(value_, dtype)); }
  static Term LogOfPower(const Term& x, const Term& y, double share);

  Builder* b_ = nullptr;
  Value value_;
  double number_ = 0;
};

Term Power(const Term& x, const Term& y, DType dtype);
// beta^step / (1 - beta^step), of a beta that is known: without the digits that this, too, loses where the power is
// close to 1. Otherwise as OneMinusPower.
Term PowerOverRest(double beta, const Term& step, DType dtype);

}  // namespace lockstep::ops
