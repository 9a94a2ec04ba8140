// Elementwise arithmetic of one operand: signs, roots, exponentials, logarithms, activations, rounding.

#include <cmath>
#include <numbers>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/unary.h"

namespace lockstep {

using ops::From;
using ops::kStepFunction;
using ops::Unary;

namespace {

// Wraps around for the lowest integer, which has no positive counterpart.
int64_t Negated(int64_t x) { return static_cast<int64_t>(0 - static_cast<uint64_t>(x)); }

// The result of std::nearbyint in the default rounding mode, independent of the mode that the process has set.
double ToNearestEven(double x) {
  const double rounded = std::round(x);  // ties away from zero
  const bool is_tie = std::fabs(x - std::trunc(x)) == 0.5;
  return is_tie ? 2.0 * std::round(x / 2.0) : rounded;
}

}  // namespace

//===-- neg -------------------------------------------------------------------------------------------------------===//
const OpDef& NegOp() {
  static const OpDef def = Unary(
                               "neg", "-x.", [](double x) { return -x; }, Negated, ops::Linearity::kAll)
                               .Trait(kInvolution)
                               .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Neg(c.grad())); });
  return def;
}

//===-- abs -------------------------------------------------------------------------------------------------------===//
const OpDef& AbsOp() {
  static const OpDef def =
      Unary(
          "abs", "The absolute value of x; its gradient at 0 is 0.", [](double x) { return std::fabs(x); },
          [](int64_t x) { return x < 0 ? Negated(x) : x; })
          .Trait(kIdempotent)
          .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Mul(c.grad(), c.b().Unary("sign", c.operand(0)))); });
  return def;
}

//===-- sign ------------------------------------------------------------------------------------------------------===//
const OpDef& SignOp() {
  static const OpDef def = Unary(
                               "sign", "-1, 0 or 1, as x is below, equal to or above 0; NaN for NaN.",
                               [](double x) { return std::isnan(x) ? x : static_cast<double>((x > 0) - (x < 0)); },
                               [](int64_t x) { return static_cast<int64_t>((x > 0) - (x < 0)); })
                               .Trait(kIdempotent)
                               .Trait(kSteps)
                               .NoGradient(kStepFunction);
  return def;
}

//===-- exp -------------------------------------------------------------------------------------------------------===//
const OpDef& ExpOp() {
  static const OpDef def = Unary(
                               "exp", "e to the power x.", [](double x) { return std::exp(x); }, nullptr)
                               .Trait(kExpensive)
                               .F32Error(2)
                               .Precision(PrecisionRule::kFull)
                               .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Mul(c.grad(), c.result())); });
  return def;
}

//===-- log -------------------------------------------------------------------------------------------------------===//
const OpDef& LogOp() {
  static const OpDef def = Unary(
                               "log", "The natural logarithm of x.", [](double x) { return std::log(x); }, nullptr)
                               .Trait(kExpensive)
                               .F32Error(2)
                               .Domain(From(0.2))
                               .Precision(PrecisionRule::kFull)
                               .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Div(c.grad(), c.operand(0))); });
  return def;
}

//===-- log1p -----------------------------------------------------------------------------------------------------===//
const OpDef& Log1pOp() {
  static const OpDef def =
      Unary(
          "log1p", "The natural logarithm of 1 + x, exact near 0.", [](double x) { return std::log1p(x); }, nullptr)
          .Trait(kExpensive)
          .F32Error(3)
          .Domain(From(-0.8))
          .Precision(PrecisionRule::kFull)
          .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Div(c.grad(), c.b().AddScalar(c.operand(0), 1.0))); });
  return def;
}

//===-- sqrt ------------------------------------------------------------------------------------------------------===//
const OpDef& SqrtOp() {
  static const OpDef def = Unary(
                               "sqrt", "The square root of x.", [](double x) { return std::sqrt(x); }, nullptr)
                               .Domain(From(0.2))
                               .Vjp([](VjpContext& c) {  // g / (2 sqrt(x))
                                 c.Contribute(0, c.b().Div(c.b().Scale(c.grad(), 0.5), c.result()));
                               });
  return def;
}

//===-- rsqrt -----------------------------------------------------------------------------------------------------===//
const OpDef& RsqrtOp() {
  static const OpDef def =
      Unary(
          "rsqrt", "1 over the square root of x.", [](double x) { return 1.0 / std::sqrt(x); }, nullptr)
          .F32Error(2)
          .Domain(From(0.2))
          .Precision(PrecisionRule::kFull)
          .Vjp([](VjpContext& c) {  // -g r^3 / 2
            Builder& b = c.b();
            const Value r = c.result();
            c.Contribute(0, b.Mul(b.Scale(c.grad(), -0.5), b.Mul(r, b.Mul(r, r))));
          });
  return def;
}

//===-- tanh ------------------------------------------------------------------------------------------------------===//
const OpDef& TanhOp() {
  static const OpDef def = Unary(
                               "tanh", "The hyperbolic tangent of x.", [](double x) { return std::tanh(x); }, nullptr)
                               .Trait(kExpensive)
                               .F32Error(3)
                               .Vjp([](VjpContext& c) {  // g (1 - y^2)
                                 Builder& b = c.b();
                                 const Value y = c.result();
                                 c.Contribute(0, b.Mul(c.grad(), b.Sub(b.SplatLike(1.0, y), b.Mul(y, y))));
                               });
  return def;
}

//===-- sigmoid ---------------------------------------------------------------------------------------------------===//
const OpDef& SigmoidOp() {
  static const OpDef def =
      Unary(
          "sigmoid", "1 / (1 + exp(-x)).", [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, nullptr)
          .Trait(kExpensive)
          .F32Error(3)
          .Vjp([](VjpContext& c) {  // g y (1 - y)
            Builder& b = c.b();
            const Value y = c.result();
            c.Contribute(0, b.Mul(c.grad(), b.Mul(y, b.Sub(b.SplatLike(1.0, y), y))));
          });
  return def;
}

//===-- softsign --------------------------------------------------------------------------------------------------===//
const OpDef& SoftsignOp() {
  static const OpDef def = Unary(
                               "softsign", "x / (1 + |x|), between -1 and 1; NaN for infinities.",
                               [](double x) { return x / (1.0 + std::fabs(x)); }, nullptr)
                               .F32Error(2)
                               .Vjp([](VjpContext& c) {  // g / (1 + |x|)^2
                                 // Computed from x, because 1 - |y| loses precision where |y| is near 1.
                                 Builder& b = c.b();
                                 const Value x = c.operand(0), one = b.SplatLike(1.0, x);
                                 const Value r = b.Div(one, b.Add(one, b.Unary("abs", x)));
                                 c.Contribute(0, b.Mul(c.grad(), b.Mul(r, r)));
                               });
  return def;
}

//===-- erf -------------------------------------------------------------------------------------------------------===//
const OpDef& ErfOp() {
  static const OpDef def = Unary(
                               "erf", "The error function of x.", [](double x) { return std::erf(x); }, nullptr)
                               .Trait(kExpensive)
                               .F32Error(3)
                               .Vjp([](VjpContext& c) {  // g 2 / sqrt(pi) exp(-x^2)
                                 Builder& b = c.b();
                                 const Value x = c.operand(0);
                                 const Value slope = b.Scale(b.Exp(b.Neg(b.Mul(x, x))), 2.0 * std::numbers::inv_sqrtpi);
                                 c.Contribute(0, b.Mul(c.grad(), slope));
                               });
  return def;
}

//===-- relu ------------------------------------------------------------------------------------------------------===//
const OpDef& ReluOp() {
  static const OpDef def = Unary(
                               "relu", "The larger of x and 0; NaN for NaN. Its gradient at 0 is 0.",
                               [](double x) { return x < 0 ? 0.0 : x; }, nullptr)
                               .Trait(kIdempotent)
                               .Vjp([](VjpContext& c) {
                                 // Computed from the result, so that x need not be kept until the backward pass.
                                 Builder& b = c.b();
                                 const Value zero = b.SplatLike(0.0, c.result());
                                 c.Contribute(0, b.Select(b.Compare(c.result(), zero, "gt"), c.grad(), zero));
                               });
  return def;
}

//===-- floor -----------------------------------------------------------------------------------------------------===//
const OpDef& FloorOp() {
  static const OpDef def =
      Unary(
          "floor", "The largest whole number that is at most x.", [](double x) { return std::floor(x); }, nullptr)
          .Trait(kIdempotent)
          .Trait(kSteps)
          .NoGradient(kStepFunction);
  return def;
}

//===-- ceil ------------------------------------------------------------------------------------------------------===//
const OpDef& CeilOp() {
  static const OpDef def =
      Unary(
          "ceil", "The smallest whole number that is at least x.", [](double x) { return std::ceil(x); }, nullptr)
          .Trait(kIdempotent)
          .Trait(kSteps)
          .NoGradient(kStepFunction);
  return def;
}

//===-- round -----------------------------------------------------------------------------------------------------===//
const OpDef& RoundOp() {
  static const OpDef def =
      Unary("round", "The whole number that is nearest to x; the even one where two are.", ToNearestEven)
          .Trait(kIdempotent)
          .Trait(kSteps)
          .NoGradient(kStepFunction);
  return def;
}

}  // namespace lockstep
