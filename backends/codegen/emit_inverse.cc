// The inverses of sine, cosine and tangent of f32. They are computed in f64, whose rounding errors do not matter for an
// f32 result.

#include <numbers>

#include "backends/codegen/emit_math.h"
#include "llvm/IR/Intrinsics.h"

namespace lockstep::math {

// Returns asin(s), from which asin and acos are computed: s = |x| up to 1/2, and s = sqrt((1 - |x|) / 2) above. For |x|
// > 1 this is the root of a negative number, NaN.
MathEmitter::ArcSine MathEmitter::ReduceArcSine(Value* x) {
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, Widened(x));
  Value* is_far = b_.CreateFCmpOGT(magnitude, Real(magnitude, 0.5));
  Value* half_rest = b_.CreateFMul(b_.CreateFSub(Real(magnitude, 1.0), magnitude), Real(magnitude, 0.5));
  Value* z = b_.CreateSelect(is_far, half_rest, b_.CreateFMul(magnitude, magnitude));
  Value* s = b_.CreateSelect(is_far, b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, half_rest), magnitude);
  // (asin(s) / s - 1) / s^2, a minimax polynomial for s from 0 to 1/2: relative error of asin(s) 2^-39.
  static constexpr double kArcSine[] = {0.16666666627482848,  0.0750000496502442,  0.04464071421468588,
                                        0.030426410072226018, 0.02186677943276061, 0.020640934617928777,
                                        0.001993508491486941, 0.032896333422833116};
  return {MulAdd(b_.CreateFMul(s, z), Polynomial(z, kArcSine), s), is_far};
}

// Error below 0.5001 ulp.
Value* MathEmitter::Asin(Value* x) {
  const ArcSine arc = ReduceArcSine(x);
  Value* far = MulAdd(arc.angle, Real(arc.angle, -2.0), Real(arc.angle, std::numbers::pi / 2));
  return WithSignOf(x, Narrowed(b_.CreateSelect(arc.is_far, far, arc.angle)));
}

// Error below 0.5001 ulp.
Value* MathEmitter::Acos(Value* x) {
  const ArcSine arc = ReduceArcSine(x);
  Value* is_negative = b_.CreateFCmpOLT(x, Real(x, 0.0));
  Value* const zero = Real(arc.angle, 0.0);
  // The result is pi / 2 -+ angle near 0, 2 angle near 1, and pi - 2 angle near -1.
  Value* factor = b_.CreateSelect(arc.is_far, Real(zero, 2.0), Real(zero, -1.0));
  factor = b_.CreateSelect(is_negative, b_.CreateFNeg(factor), factor);
  Value* far = b_.CreateSelect(is_negative, Real(zero, std::numbers::pi), zero);
  Value* start = b_.CreateSelect(arc.is_far, far, Real(zero, std::numbers::pi / 2));
  return Narrowed(MulAdd(arc.angle, factor, start));
}

// Error below 0.5001 ulp. Computes atan(t) with t = |x| up to 1, and pi / 2 - atan(1 / |x|) above.
Value* MathEmitter::Atan(Value* x) {
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, Widened(x));
  Value* const one = Real(magnitude, 1.0);
  Value* is_far = b_.CreateFCmpOGT(magnitude, one);
  Value* t = b_.CreateSelect(is_far, b_.CreateFDiv(one, magnitude), magnitude);
  // (atan(t) / t - 1) / t^2, a minimax polynomial for t from 0 to 1: relative error of atan(t) 2^-39.
  static constexpr double kArcTangent[] = {
      -0.33333333292387896,  0.19999996635798842,   -0.14285617090193253,   0.11109685247735082,  -0.09078431344838234,
      0.07621015709894871,   -0.06385076437678003,  0.050822806334146965,   -0.03575792131055913, 0.02038090834239385,
      -0.008501480357429331, 0.0022514916101843392, -0.00028003550584820613};
  Value* z = b_.CreateFMul(t, t);
  Value* angle = MulAdd(b_.CreateFMul(t, z), Polynomial(z, kArcTangent), t);
  angle = b_.CreateSelect(is_far, b_.CreateFSub(Real(t, std::numbers::pi / 2), angle), angle);
  return WithSignOf(x, Narrowed(angle));
}

}  // namespace lockstep::math
