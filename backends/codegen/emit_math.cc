#include "backends/codegen/emit_math.h"

#include <algorithm>
#include <array>
#include <numbers>

#include "llvm/IR/Intrinsics.h"

namespace lockstep::math {

Value* MathEmitter::Real(Value* like, double value) { return llvm::ConstantFP::get(like->getType(), value); }

Value* MathEmitter::Splat(Value* scalar, Value* like) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(like->getType());
  return vector ? b_.CreateVectorSplat(vector->getElementCount(), scalar) : scalar;
}

llvm::Type* MathEmitter::IntegersLike(Value* x) { return x->getType()->getWithNewType(b_.getInt32Ty()); }

Value* MathEmitter::Whole(Value* like, int64_t value) {
  return llvm::ConstantInt::getSigned(IntegersLike(like), value);
}

Value* MathEmitter::AtMost(Value* x, double limit) {
  if (target_.has_maximum) return b_.CreateBinaryIntrinsic(llvm::Intrinsic::minimum, x, Real(x, limit));
  return b_.CreateSelect(b_.CreateFCmpOGT(x, Real(x, limit)), Real(x, limit), x);
}

Value* MathEmitter::MulAdd(Value* x, Value* y, Value* z) {
  if (!target_.has_fma) return b_.CreateFAdd(b_.CreateFMul(x, y), z);
  return b_.CreateIntrinsic(llvm::Intrinsic::fma, {x->getType()}, {x, y, z});
}

Value* MathEmitter::Polynomial(Value* x, llvm::ArrayRef<double> c) {
  Value* sum = Real(x, c.back());
  for (size_t i = c.size() - 1; i-- > 0;) sum = MulAdd(sum, x, Real(x, c[i]));
  return sum;
}

Value* MathEmitter::PowerOfTwo(Value* n) {
  Value* exponent = b_.CreateAdd(n, Whole(n, 127));
  return b_.CreateBitCast(b_.CreateShl(exponent, Whole(n, 23)), n->getType()->getWithNewType(b_.getFloatTy()));
}

MathEmitter::Reduced MathEmitter::Reduce(Value* x) {
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
  Value* magic = Real(x, 12582912.0);
  Value* sum = MulAdd(x, Real(x, 1.4426950408889634), magic);
  Value* whole = b_.CreateFSub(sum, magic);
  // ln 2 is split into two parts; the product with the first is exact.
  Value* r = MulAdd(whole, Real(x, -0.693359375), x);
  r = MulAdd(whole, Real(x, 2.12194440054690583e-4), r);
  Value* n = b_.CreateSub(b_.CreateBitCast(sum, IntegersLike(x)), Whole(x, 0x4b400000));
  // (exp(r) - 1 - r) / r^2, a minimax polynomial: error of the sum 3e-9.
  static constexpr double kExp[] = {0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.0083687175065279,
                                    0.0013814596459269524};
  return {n, r, b_.CreateFMul(b_.CreateFMul(r, r), Polynomial(r, kExp))};
}

// Error below 1.5 ulp; below 5 ulp by the target's 2^x.
Value* MathEmitter::Exp(Value* x) {
  if (target_.exp2 != nullptr) return ExpByExp2(x);
  // Beyond these bounds the result is infinite or 0. NaN fails both comparisons and stays.
  Value* clamped = b_.CreateSelect(b_.CreateFCmpOGT(x, Real(x, 89.0)), Real(x, 89.0), x);
  clamped = b_.CreateSelect(b_.CreateFCmpOLT(clamped, Real(x, -104.0)), Real(x, -104.0), clamped);
  const Reduced reduced = Reduce(clamped);
  Value* power = b_.CreateFAdd(b_.CreateFAdd(reduced.tail, reduced.r), Real(x, 1.0));
  // Multiplies in two steps, because 2^n may be out of range although the result is not, and so that denormals are
  // rounded once.
  Value* half = b_.CreateAShr(reduced.n, Whole(x, 1));
  power = b_.CreateFMul(power, PowerOfTwo(half));
  return b_.CreateFMul(power, PowerOfTwo(b_.CreateSub(reduced.n, half)));
}

// x = n ln 2 + r, where n is an integer from -126 to 126, so that 2^n is normal. Beyond |n| = 126, r is larger than
// ln(2) / 2: then 2^(r log2 e) is infinite where e^x is, and at least 2^-24 where e^x is not 0.
Value* MathEmitter::ExpByExp2(Value* x) {
  Value* const log2_e = Real(x, 1.4426950408889634);
  Value* n = b_.CreateFMul(x, log2_e);
  n = b_.CreateMinNum(b_.CreateMaxNum(n, Real(x, -126.0)), Real(x, 126.0));
  Value* const magic = Real(x, 12582912.0);  // as in Reduce
  Value* sum = b_.CreateFAdd(n, magic);
  Value* whole = b_.CreateFSub(sum, magic);
  Value* r = MulAdd(whole, Real(x, -0.693359375), x);
  r = MulAdd(whole, Real(x, 2.12194440054690583e-4), r);
  Value* power = PowerOfTwo(b_.CreateBitCast(sum, IntegersLike(x)));  // the bits of `magic` are shifted out
  return b_.CreateFMul(target_.exp2(b_, b_.CreateFMul(r, log2_e)), power);
}

// Error below 1.5 ulp.
Value* MathEmitter::Log(Value* x) {
  // x = 2^e m with m between sqrt(1/2) and sqrt(2); denormals are made normal first.
  Value* small = b_.CreateFCmpOLT(x, Real(x, 1.1754943508222875e-38));
  Value* normal = b_.CreateSelect(small, b_.CreateFMul(x, Real(x, 33554432.0)), x);
  Value* bits = b_.CreateBitCast(normal, IntegersLike(x));
  Value* e = b_.CreateAShr(b_.CreateSub(bits, Whole(x, 0x3f3504f3)), Whole(x, 23));
  Value* m = b_.CreateBitCast(b_.CreateSub(bits, b_.CreateShl(e, Whole(x, 23))), x->getType());
  e = b_.CreateSub(e, b_.CreateSelect(small, Whole(x, 25), Whole(x, 0)));
  Value* exponent = b_.CreateSIToFP(e, x->getType());
  // With f = m - 1 and s = f / (2 + f), log(m) = 2 artanh(s) = f - (f^2/2 - s (f^2/2 + R(s^2))). Its largest term, f,
  // is exact.
  Value* f = b_.CreateFSub(m, Real(x, 1.0));
  Value* s = b_.CreateFDiv(f, b_.CreateFAdd(f, Real(x, 2.0)));
  Value* z = b_.CreateFMul(s, s);
  static constexpr double kArtanh[] = {2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9};
  Value* rest = b_.CreateFMul(z, Polynomial(z, kArtanh));
  Value* half_square = b_.CreateFMul(b_.CreateFMul(f, f), Real(x, 0.5));
  Value* low = MulAdd(exponent, Real(x, -2.12194440054690583e-4), b_.CreateFMul(s, b_.CreateFAdd(half_square, rest)));
  Value* log = b_.CreateFSub(f, b_.CreateFSub(half_square, low));
  log = MulAdd(exponent, Real(x, 0.693359375), log);
  const double infinity = std::numeric_limits<double>::infinity();
  log = b_.CreateSelect(b_.CreateFCmpUEQ(x, Real(x, infinity)), x, log);  // also NaN
  log = b_.CreateSelect(b_.CreateFCmpOLT(x, Real(x, 0.0)), Real(x, std::numeric_limits<double>::quiet_NaN()), log);
  return b_.CreateSelect(b_.CreateFCmpOEQ(x, Real(x, 0.0)), Real(x, -infinity), log);
}

// Error below 3 ulp. With u = 1 + x rounded, the factor x / (u - 1) of log(u) corrects the rounding.
Value* MathEmitter::Log1p(Value* x) {
  Value* u = b_.CreateFAdd(x, Real(x, 1.0));
  Value* moved = b_.CreateFSub(u, Real(x, 1.0));
  Value* log = Log(u);
  Value* result = b_.CreateFMul(log, b_.CreateFDiv(x, moved));
  result = b_.CreateSelect(b_.CreateFCmpOEQ(u, Real(x, 1.0)), x, result);
  // For infinite u the quotient is NaN; log(u) is correct.
  return b_.CreateSelect(b_.CreateFCmpOEQ(u, Real(x, std::numeric_limits<double>::infinity())), u, result);
}

// Error below 3 ulp. tanh(x) = t / (t + 2) with t = expm1(2 |x|).
Value* MathEmitter::Tanh(Value* x) {
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* clamped = AtMost(magnitude, 10.0);
  const Reduced reduced = Reduce(b_.CreateFAdd(clamped, clamped));
  // expm1(n ln 2 + r) = 2^n expm1(r) + (2^n - 1), where 2^n - 1 is exact up to n = 24, and n is at most 29.
  Value* scale = PowerOfTwo(reduced.n);
  Value* expm1 = b_.CreateFAdd(reduced.tail, reduced.r);
  Value* t = MulAdd(expm1, scale, b_.CreateFSub(scale, Real(x, 1.0)));
  Value* quotient = b_.CreateFDiv(t, b_.CreateFAdd(t, Real(x, 2.0)));
  return b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, quotient, x);
}

// Error below 3 ulp. With e = exp(-|x|), which cannot overflow: 1 / (1 + e) or e / (1 + e).
Value* MathEmitter::Sigmoid(Value* x) {
  Value* e = Exp(b_.CreateFNeg(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x)));
  Value* above = b_.CreateSelect(b_.CreateFCmpOLT(x, Real(x, 0.0)), e, Real(x, 1.0));
  return b_.CreateFDiv(above, b_.CreateFAdd(e, Real(x, 1.0)));
}

// Both operands are scaled by a power of two with the sign of the divisor, so that the divisor is positive, its
// reciprocal is normal, and the scaled x is infinite only if the quotient is. Then q = x r with the rounded reciprocal
// r is within 1.5 ulp, and the rest x - q y gives the correctly rounded quotient (P. Markstein, Computation of
// elementary functions on the IBM RISC System/6000 processor, 1990): for every divisor, all x were compared whose
// quotient is near the middle between two floats. Below 2^-100 the rest may be rounded, and a quotient within 1.5 ulp
// of the largest f32 may become infinite; then the result is one of the neighbours of the correctly rounded one, or
// equal. If the rest is not finite, an operand or the quotient is not either, or the divisor is 0, and q is the
// quotient.
Value* MathEmitter::DivideByOne(Value* x, Value* divisor) {
  Value* bits = b_.CreateBitCast(divisor, IntegersLike(divisor));
  Value* exponent = b_.CreateAnd(b_.CreateLShr(bits, Whole(bits, 23)), Whole(bits, 0xff));
  // The scaled divisor is in [1/2, 1) if it was below 1, or below that if it was denormal; at 2^125 and above it is
  // divided by 2^24.
  Value* up =
      b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, b_.CreateSub(Whole(bits, 253), exponent), Whole(bits, 127));
  Value* scale = b_.CreateSelect(b_.CreateICmpSGT(exponent, Whole(bits, 251)), Whole(bits, 127 - 24), up);
  scale = b_.CreateOr(b_.CreateShl(scale, Whole(bits, 23)), b_.CreateAnd(bits, Whole(bits, INT32_MIN)));
  Value* scale_of_all = b_.CreateBitCast(scale, divisor->getType());
  Value* scaled = b_.CreateFMul(divisor, scale_of_all);
  Value* reciprocal = Splat(b_.CreateFDiv(Real(scaled, 1.0), scaled), x);
  Value* dividend = b_.CreateFMul(x, Splat(scale_of_all, x));
  Value* quotient = b_.CreateFMul(dividend, reciprocal);
  // The negative rest: the sign of a zero quotient stays.
  Value* excess = MulAdd(quotient, Splat(scaled, x), b_.CreateFNeg(dividend));
  Value* corrected = MulAdd(b_.CreateFNeg(excess), reciprocal, quotient);
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, excess);
  return b_.CreateSelect(b_.CreateFCmpOLT(magnitude, Real(x, kInfinity)), corrected, quotient);
}

// Error below 3 ulp: x P(x^2) below 1, and 1 - exp(Q(|x|)) above, with minimax polynomials.
Value* MathEmitter::Erf(Value* x) {
  static constexpr double kNear[] = {1.1283791065216064,    -0.3761262595653534,  0.1128358542919159,
                                     -0.026853810995817184, 0.005188327748328447, -0.0008010192541405559,
                                     7.853857823647559e-05};
  static constexpr double kFar[] = {-0.00034151258296333253, -1.127089262008667,   -0.6381447315216064,
                                    -0.10310681909322739,    0.021838096901774406, -0.0029476669151335955,
                                    0.0001863800862338394};
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* near = b_.CreateFMul(x, Polynomial(b_.CreateFMul(x, x), kNear));
  Value* clamped = AtMost(magnitude, 4.0);
  Value* power = nullptr;
  if (target_.exp2 != nullptr) {  // Q is from -18 to 0: no step of ExpByExp2 but the last is needed
    std::array<double, std::size(kFar)> in_base_2 = {};
    std::transform(std::begin(kFar), std::end(kFar), in_base_2.begin(),
                   [](double c) { return c * std::numbers::log2e; });
    power = target_.exp2(b_, Polynomial(clamped, in_base_2));
  } else {
    power = Exp(Polynomial(clamped, kFar));
  }
  Value* far = b_.CreateFSub(Real(x, 1.0), power);
  far = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, far, x);
  return b_.CreateSelect(b_.CreateFCmpOLT(magnitude, Real(x, 1.0)), near, far);
}

}  // namespace lockstep::math
