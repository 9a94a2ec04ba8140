// The hyperbolic functions of f32 and their inverses, and the f64 exponential and logarithm that they and powers use.
// In f64, rounding errors and cancellation are too small to matter for an f32 result.

#include <limits>
#include <numbers>

#include "backends/codegen/emit_math.h"
#include "llvm/IR/Intrinsics.h"

namespace lockstep::math {

namespace {

// Below this, the inverses are computed from two terms of their series, whose relative error is below 2^-42.
constexpr double kSmall = 1.0 / 1024;

}  // namespace

Value* MathEmitter::Widened(Value* x) { return b_.CreateFPExt(x, x->getType()->getWithNewType(b_.getDoubleTy())); }

Value* MathEmitter::Narrowed(Value* x) { return b_.CreateFPTrunc(x, x->getType()->getWithNewType(b_.getFloatTy())); }

Value* MathEmitter::WithSignOf(Value* x, Value* magnitude) {
  return b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude, x);
}

MathEmitter::Exponential MathEmitter::WideExp(Value* x) {
  // x = n ln 2 + r. Adding 1.5 * 2^52 rounds to an integer, which is then in the low bits of the sum.
  Value* magic = Real(x, 6755399441055744.0);
  Value* sum = MulAdd(x, Real(x, std::numbers::log2e), magic);
  Value* r = MulAdd(b_.CreateFSub(sum, magic), Real(x, -std::numbers::ln2), x);
  // (cosh(r) - 1) / r^2 and (sinh(r) / r - 1) / r^2, minimax polynomials for |r| up to ln(2) / 2: errors below 2^-45,
  // and 2^-37 of the result.
  static constexpr double kCosh[] = {0.4999999999959868, 0.041666666991222595, 0.0013888807309026723,
                                     2.4882382949347102e-05};
  static constexpr double kSinh[] = {0.1666666675449783, 0.008333288972260385, 0.00019904948009738787};
  Value* z = b_.CreateFMul(r, r);
  Value* n = b_.CreateBitCast(sum, x->getType()->getWithNewType(b_.getInt64Ty()));
  const auto whole = [&](uint64_t value) { return llvm::ConstantInt::get(n->getType(), value); };
  // 2^n and 2^-n: the shift keeps only the lowest bits of n.
  Value* up = b_.CreateShl(b_.CreateAdd(n, whole(1023)), whole(52));
  Value* down = b_.CreateShl(b_.CreateSub(whole(1023), n), whole(52));
  return {MulAdd(z, Polynomial(z, kCosh), Real(x, 1.0)), MulAdd(b_.CreateFMul(r, z), Polynomial(z, kSinh), r),
          b_.CreateBitCast(up, x->getType()), b_.CreateBitCast(down, x->getType())};
}

Value* MathEmitter::WideLog(Value* x) {
  // x = 2^e m with m between sqrt(1/2) and sqrt(2), chosen by the highest bits.
  llvm::Type* const i64 = x->getType()->getWithNewType(b_.getInt64Ty());
  const auto whole = [&](int64_t value) { return llvm::ConstantInt::getSigned(i64, value); };
  Value* bits = b_.CreateBitCast(x, i64);
  Value* high = b_.CreateTrunc(b_.CreateLShr(bits, whole(32)), IntegersLike(x));
  Value* e = b_.CreateAShr(b_.CreateSub(high, Whole(x, 0x3fe6a09e)), Whole(x, 20));
  Value* m = b_.CreateBitCast(b_.CreateSub(bits, b_.CreateShl(b_.CreateSExt(e, i64), whole(52))), x->getType());
  // log(m) = 2 artanh(s). The minimax polynomial for (log(m) / s - 2) / s^2 gives an error of 2^-44 of log(m).
  Value* s = b_.CreateFDiv(b_.CreateFSub(m, Real(x, 1.0)), b_.CreateFAdd(m, Real(x, 1.0)));
  Value* z = b_.CreateFMul(s, s);
  static constexpr double kArtanh[] = {0.6666666667579968, 0.399999956225885, 0.2857210904827168, 0.22176194418819534,
                                       0.1958405463146824};
  Value* log = b_.CreateFMul(s, MulAdd(z, Polynomial(z, kArtanh), Real(x, 2.0)));
  return MulAdd(b_.CreateSIToFP(e, x->getType()), Real(x, std::numbers::ln2), log);
}

// Returns 2^n, 2^-n, cosh(r) and sinh(r), so that e^|x| = 2^n (cosh(r) + sinh(r)). |x| is clamped above the range of
// f32; NaN stays NaN.
MathEmitter::Exponential MathEmitter::ReduceHyperbolic(Value* x) {
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, Widened(x));
  Value* const limit = Real(magnitude, 100.0);
  return WideExp(b_.CreateSelect(b_.CreateFCmpOGT(magnitude, limit), limit, magnitude));
}

// Error below 0.5001 ulp. Computes sinh(n ln 2 + r) by the addition theorem: for n = 0 it is sinh(r).
Value* MathEmitter::Sinh(Value* x) {
  const Exponential e = ReduceHyperbolic(x);
  Value* twice = MulAdd(b_.CreateFSub(e.up, e.down), e.cosh, b_.CreateFMul(b_.CreateFAdd(e.up, e.down), e.sinh));
  return WithSignOf(x, Narrowed(b_.CreateFMul(twice, Real(twice, 0.5))));
}

// Error below 0.5001 ulp.
Value* MathEmitter::Cosh(Value* x) {
  const Exponential e = ReduceHyperbolic(x);
  Value* twice = MulAdd(b_.CreateFAdd(e.up, e.down), e.cosh, b_.CreateFMul(b_.CreateFSub(e.up, e.down), e.sinh));
  return Narrowed(b_.CreateFMul(twice, Real(twice, 0.5)));
}

// Returns x + factor x^3 if x is small, else `other`.
Value* MathEmitter::CubicIfSmall(Value* x, double factor, Value* other) {
  Value* cubic = MulAdd(b_.CreateFMul(x, b_.CreateFMul(x, x)), Real(x, factor), x);
  return b_.CreateSelect(b_.CreateFCmpOLT(x, Real(x, kSmall)), cubic, other);
}

// Error below 0.5001 ulp: log(|x| + sqrt(x^2 + 1)).
Value* MathEmitter::Asinh(Value* x) {
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, Widened(x));
  Value* root = b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, MulAdd(magnitude, magnitude, Real(magnitude, 1.0)));
  Value* result = CubicIfSmall(magnitude, -1.0 / 6, WideLog(b_.CreateFAdd(magnitude, root)));
  result = b_.CreateSelect(b_.CreateFCmpUEQ(magnitude, Real(magnitude, kInfinity)), magnitude, result);  // also NaN
  return WithSignOf(x, Narrowed(result));
}

// Error below 0.5001 ulp: log(x + sqrt((x - 1) (x + 1))).
Value* MathEmitter::Acosh(Value* x) {
  Value* wide = Widened(x);
  Value* const one = Real(wide, 1.0);
  Value* square = b_.CreateFMul(b_.CreateFSub(wide, one), b_.CreateFAdd(wide, one));
  Value* log = WideLog(b_.CreateFAdd(wide, b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, square)));
  log = b_.CreateSelect(b_.CreateFCmpUEQ(wide, Real(wide, kInfinity)), wide, log);  // also NaN
  return Narrowed(b_.CreateSelect(b_.CreateFCmpOLT(wide, one), Real(wide, kNan), log));
}

// Error below 0.5001 ulp: log((1 + |x|) / (1 - |x|)) / 2.
Value* MathEmitter::Atanh(Value* x) {
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, Widened(x));
  Value* const one = Real(magnitude, 1.0);
  Value* quotient = b_.CreateFDiv(b_.CreateFAdd(one, magnitude), b_.CreateFSub(one, magnitude));
  Value* log = b_.CreateFMul(WideLog(quotient), Real(magnitude, 0.5));
  // infinite at 1; also NaN
  log = b_.CreateSelect(b_.CreateFCmpUEQ(quotient, Real(quotient, kInfinity)), quotient, log);
  log = b_.CreateSelect(b_.CreateFCmpOGT(magnitude, one), Real(magnitude, kNan), log);
  return WithSignOf(x, Narrowed(CubicIfSmall(magnitude, 1.0 / 3, log)));
}

}  // namespace lockstep::math
