// Trigonometric and hyperbolic functions, and their inverses. Angles are in radians. The error bounds in f32 are those
// of functions that are computed in f64 and rounded, which is almost always the nearest f32.

#include <cmath>

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/unary.h"

namespace lockstep {

using ops::From;
using ops::Unary;

namespace {

// Beyond this angle, its rounding error is too large a part of a period.
constexpr double kLargestAngle = 10;
// Near 1 and -1 the inverses of sine, cosine and the hyperbolic tangent have no finite slope.
constexpr double kNearOne = 0.9;

// 1 - x^2, without loss of precision near 1 and -1.
Value OneMinusSquare(Builder& b, Value x) {
  const Value one = b.SplatLike(1.0, x);
  return b.Mul(b.Sub(one, x), b.Add(one, x));
}

Value OnePlusSquare(Builder& b, Value x) { return b.AddScalar(b.Mul(x, x), 1.0); }

// Contributes the gradient times `slope`.
void Times(VjpContext& c, Value slope) { c.Contribute(0, c.b().Mul(c.grad(), slope)); }

}  // namespace

//===-- sin -------------------------------------------------------------------------------------------------------===//
const OpDef& SinOp() {
  static const OpDef def = Unary("sin", "The sine of x.", [](double x) { return std::sin(x); })
                               .Trait(kExpensive)
                               .F32Error(1)
                               .Domain(ops::Between(-kLargestAngle, kLargestAngle))
                               .Vjp([](VjpContext& c) { Times(c, c.b().Unary("cos", c.operand(0))); });
  return def;
}

//===-- cos -------------------------------------------------------------------------------------------------------===//
const OpDef& CosOp() {
  static const OpDef def = Unary("cos", "The cosine of x.", [](double x) { return std::cos(x); })
                               .Trait(kExpensive)
                               .F32Error(1)
                               .Domain(ops::Between(-kLargestAngle, kLargestAngle))
                               .Vjp([](VjpContext& c) { Times(c, c.b().Neg(c.b().Unary("sin", c.operand(0)))); });
  return def;
}

//===-- tan -------------------------------------------------------------------------------------------------------===//
const OpDef& TanOp() {
  static const OpDef def = Unary("tan", "The tangent of x.", [](double x) { return std::tan(x); })
                               .Trait(kExpensive)
                               .F32Error(1)
                               .Domain(ops::Between(-1.2, 1.2))
                               .Precision(PrecisionRule::kFull)
                               .Vjp([](VjpContext& c) { Times(c, OnePlusSquare(c.b(), c.result())); });
  return def;
}

//===-- asin ------------------------------------------------------------------------------------------------------===//
const OpDef& AsinOp() {
  static const OpDef def = Unary("asin", "The angle from -pi/2 to pi/2 whose sine is x; NaN if there is none.",
                                 [](double x) { return std::asin(x); })
                               .Trait(kExpensive)
                               .F32Error(1)
                               .Domain(ops::Between(-kNearOne, kNearOne))
                               .Precision(PrecisionRule::kFull)
                               .Vjp([](VjpContext& c) { Times(c, c.b().Rsqrt(OneMinusSquare(c.b(), c.operand(0)))); });
  return def;
}

//===-- acos ------------------------------------------------------------------------------------------------------===//
const OpDef& AcosOp() {
  static const OpDef def =
      Unary("acos", "The angle from 0 to pi whose cosine is x; NaN if there is none.",
            [](double x) { return std::acos(x); })
          .Trait(kExpensive)
          .F32Error(1)
          .Domain(ops::Between(-kNearOne, kNearOne))
          .Precision(PrecisionRule::kFull)
          .Vjp([](VjpContext& c) { Times(c, c.b().Neg(c.b().Rsqrt(OneMinusSquare(c.b(), c.operand(0))))); });
  return def;
}

//===-- atan ------------------------------------------------------------------------------------------------------===//
const OpDef& AtanOp() {
  static const OpDef def =
      Unary("atan", "The angle from -pi/2 to pi/2 whose tangent is x.", [](double x) { return std::atan(x); })
          .Trait(kExpensive)
          .F32Error(1)
          .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Div(c.grad(), OnePlusSquare(c.b(), c.operand(0)))); });
  return def;
}

//===-- sinh ------------------------------------------------------------------------------------------------------===//
const OpDef& SinhOp() {
  static const OpDef def = Unary("sinh", "The hyperbolic sine of x.", [](double x) { return std::sinh(x); })
                               .Trait(kExpensive)
                               .F32Error(1)
                               .Precision(PrecisionRule::kFull)
                               .Vjp([](VjpContext& c) { Times(c, c.b().Unary("cosh", c.operand(0))); });
  return def;
}

//===-- cosh ------------------------------------------------------------------------------------------------------===//
const OpDef& CoshOp() {
  static const OpDef def = Unary("cosh", "The hyperbolic cosine of x.", [](double x) { return std::cosh(x); })
                               .Trait(kExpensive)
                               .F32Error(1)
                               .Precision(PrecisionRule::kFull)
                               .Vjp([](VjpContext& c) { Times(c, c.b().Unary("sinh", c.operand(0))); });
  return def;
}

//===-- asinh -----------------------------------------------------------------------------------------------------===//
const OpDef& AsinhOp() {
  static const OpDef def =
      Unary("asinh", "The number whose hyperbolic sine is x.", [](double x) { return std::asinh(x); })
          .Trait(kExpensive)
          .F32Error(1)
          .Vjp([](VjpContext& c) { Times(c, c.b().Rsqrt(OnePlusSquare(c.b(), c.operand(0)))); });
  return def;
}

//===-- acosh -----------------------------------------------------------------------------------------------------===//
const OpDef& AcoshOp() {
  static const OpDef def =
      Unary("acosh", "The number of at least 0 whose hyperbolic cosine is x; NaN if there is none.",
            [](double x) { return std::acosh(x); })
          .Trait(kExpensive)
          .F32Error(1)
          .Domain(From(1.2))
          .Vjp([](VjpContext& c) {  // 1 / sqrt(x^2 - 1), without loss of precision near 1; infinite at 1
            Builder& b = c.b();
            const Value x = c.operand(0), one = b.SplatLike(1.0, x);
            Times(c, b.Rsqrt(b.Mul(b.Sub(x, one), b.Add(x, one))));
          });
  return def;
}

//===-- atanh -----------------------------------------------------------------------------------------------------===//
const OpDef& AtanhOp() {
  static const OpDef def =
      Unary("atanh", "The number whose hyperbolic tangent is x; NaN if there is none.",
            [](double x) { return std::atanh(x); })
          .Trait(kExpensive)
          .F32Error(1)
          .Domain(ops::Between(-kNearOne, kNearOne))
          .Vjp([](VjpContext& c) { c.Contribute(0, c.b().Div(c.grad(), OneMinusSquare(c.b(), c.operand(0)))); });
  return def;
}

}  // namespace lockstep
