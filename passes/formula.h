// Elementwise formulas in the usual notation: `q * (d - q * 0.5)`. A Formula is a value with the builder that adds the
// nodes. A number stands for a tensor of equal elements. After the builder's first error all formulas are null, as are
// the builder's values. For the blocks of losses. Any thread that owns the graph.

#pragma once

#include <cstdint>

#include "core/builder.h"

namespace lockstep::passes {

class Formula {
 public:
  Formula(Builder& b, Value value) : b_(&b), value_(value) {}

  Value value() const { return value_; }
  Builder& b() const { return *b_; }
  // Returns a tensor of this one's type whose elements all equal `number`.
  Formula Like(double number) const { return {*b_, b_->SplatLike(number, value_)}; }

  Formula operator-() const { return {*b_, b_->Neg(value_)}; }
  friend Formula operator+(Formula x, Formula y) { return {x.b(), x.b().Add(x.value_, y.value_)}; }
  friend Formula operator-(Formula x, Formula y) { return {x.b(), x.b().Sub(x.value_, y.value_)}; }
  friend Formula operator*(Formula x, Formula y) { return {x.b(), x.b().Mul(x.value_, y.value_)}; }
  friend Formula operator/(Formula x, Formula y) { return {x.b(), x.b().Div(x.value_, y.value_)}; }
  friend Formula operator+(Formula x, double y) { return x + x.Like(y); }
  friend Formula operator-(Formula x, double y) { return x - x.Like(y); }
  friend Formula operator*(Formula x, double y) { return x * x.Like(y); }
  friend Formula operator/(Formula x, double y) { return x / x.Like(y); }
  friend Formula operator-(double x, Formula y) { return y.Like(x) - y; }

  // Comparisons return bools.
  friend Formula operator==(Formula x, Formula y) { return Compared(x, y, "eq"); }
  friend Formula operator==(Formula x, double y) { return Compared(x, x.Like(y), "eq"); }
  friend Formula operator<(Formula x, Formula y) { return Compared(x, y, "lt"); }
  friend Formula operator<(Formula x, double y) { return Compared(x, x.Like(y), "lt"); }

 private:
  static Formula Compared(Formula x, Formula y, const char* direction) {
    return {x.b(), x.b().Compare(x.value_, y.value_, direction)};
  }

  Builder* b_;
  Value value_;
};

inline Formula Abs(Formula x) { return {x.b(), x.b().Unary("abs", x.value())}; }
inline Formula Exp(Formula x) { return {x.b(), x.b().Exp(x.value())}; }
inline Formula Log(Formula x) { return {x.b(), x.b().Log(x.value())}; }
inline Formula Log1p(Formula x) { return {x.b(), x.b().Unary("log1p", x.value())}; }
inline Formula Sqrt(Formula x) { return {x.b(), x.b().Sqrt(x.value())}; }
inline Formula Square(Formula x) { return x * x; }
// If the operands are equal, each gets half of the gradient.
inline Formula Max(Formula x, double y) { return {x.b(), x.b().Max(x.value(), x.Like(y).value())}; }
inline Formula Min(Formula x, double y) { return {x.b(), x.b().Min(x.value(), x.Like(y).value())}; }
inline Formula Where(Formula condition, Formula yes, Formula no) {
  return {yes.b(), yes.b().Select(condition.value(), yes.value(), no.value())};
}
inline Formula Where(Formula condition, double yes, Formula no) { return Where(condition, no.Like(yes), no); }
inline Formula Where(Formula condition, Formula yes, double no) { return Where(condition, yes, yes.Like(no)); }
// Returns max(x, 0). Its gradient at 0 is 1, like that of PyTorch's clamp_min. NaN stays NaN.
inline Formula Hinge(Formula x) { return Where(x < 0, 0, x); }
// Returns x, of f32 or f64, through which no gradient flows: it is cast to the integers of its bits and back, and
// gradients flow through floats only (core/backpropagate.h). `simplify` later removes the casts.
inline Formula Held(Formula x) {
  if (!x.value()) return x;
  const DType dtype = x.value().dtype(), bits = dtype == DType::kF64 ? DType::kI64 : DType::kI32;
  const Value as_bits = x.b().Op("bitcast", {x.value()}, {{"dtype", bits}});
  return {x.b(), x.b().Op("bitcast", {as_bits}, {{"dtype", dtype}})};
}
// Returns the sum along one dimension, which is removed.
inline Formula Sum(Formula x, int64_t dim) { return {x.b(), x.b().ReduceSum(x.value(), {dim})}; }
// Returns x, of one dimension, broadcast to the shape of `like`, of which it is dimension `dim`.
inline Formula Along(Formula x, Formula like, int64_t dim) {
  if (!x.value() || !like.value()) return {x.b(), Value()};
  return {x.b(), x.b().BroadcastAlong(x.value(), like.value().shape(), dim)};
}

}  // namespace lockstep::passes
