// Sine, cosine and tangent of f32, for angles of any size. They are computed in f64, whose rounding errors are so small
// that the result is almost always the f32 that is nearest to the true value.

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/codegen/emit_math.h"
#include "llvm/IR/Module.h"

namespace lockstep::math {

namespace {

// The first 224 fractional bits of 2 / pi.
constexpr std::array<uint32_t, 7> kTwoOverPi = {0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                                0xdb629599, 0x3c439041, 0xfe5163ab};
constexpr int kParts = 3, kPartBits = 29;
constexpr int kExponents = 256;

// Returns `count` bits from bit `first` on; bit 1 is the first fractional bit.
double TwoOverPiBits(int first, int count) {
  double bits = 0;
  for (int i = first; i < first + count; ++i)
    bits = 2 * bits + static_cast<double>((kTwoOverPi[static_cast<size_t>((i - 1) / 32)] >> (31 - (i - 1) % 32)) & 1);
  return bits;
}

// Returns, for each exponent field e of an f32, its unit in the last place times 2 / pi modulo 4, as the sum of three
// doubles of 29 bits each, so that a product with the 24 bits of a significand is exact. Infinities and NaN have NaN.
std::vector<double> QuartersOfLastPlace() {
  std::vector<double> table;
  for (int e = 0; e < kExponents; ++e) {
    const int last_place = std::max(e, 1) - 150;    // as a power of two; denormals have the same as e = 1
    const int first = std::max(1, last_place - 1);  // bits before it are multiples of 4
    for (int part = 0; part < kParts; ++part) {
      const int from = first + part * kPartBits;
      const double value = e == kExponents - 1
                               ? std::numeric_limits<double>::quiet_NaN()
                               : std::ldexp(TwoOverPiBits(from, kPartBits), last_place - (from + kPartBits - 1));
      table.push_back(value);
    }
  }
  return table;
}

// Returns the table as a constant of `module`.
llvm::GlobalVariable* TableIn(llvm::Module& module) {
  constexpr char kName[] = "quarters_of_last_place";
  if (llvm::GlobalVariable* table = module.getGlobalVariable(kName, /*AllowInternal=*/true)) return table;
  static const std::vector<double> values = QuartersOfLastPlace();
  llvm::Constant* constant = llvm::ConstantDataArray::get(module.getContext(), llvm::ArrayRef<double>(values));
  return new llvm::GlobalVariable(module, constant->getType(), /*isConstant=*/true, llvm::GlobalValue::PrivateLinkage,
                                  constant, kName);
}

}  // namespace

Value* MathEmitter::QuartersPart(Value* exponent, int part) {
  llvm::Type* const f64 = b_.getDoubleTy();
  Value* const index = b_.CreateAdd(b_.CreateMul(exponent, Whole(exponent, kParts)), Whole(exponent, part));
  Value* const address = b_.CreateInBoundsGEP(f64, TableIn(*b_.GetInsertBlock()->getModule()), index);
  if (!exponent->getType()->isVectorTy()) return b_.CreateLoad(f64, address);
  return b_.CreateMaskedGather(exponent->getType()->getWithNewType(f64), address, llvm::Align(8));
}

MathEmitter::Angle MathEmitter::ReduceAngle(Value* x) {
  // |x| is an integer below 2^24 times its unit in the last place. The bits are frozen, because the exponent becomes an
  // address.
  Value* bits = b_.CreateFreeze(b_.CreateBitCast(x, IntegersLike(x)));
  Value* exponent = b_.CreateAnd(b_.CreateLShr(bits, Whole(x, 23)), Whole(x, 255));
  Value* leading = b_.CreateSelect(b_.CreateICmpEQ(exponent, Whole(x, 0)), Whole(x, 0), Whole(x, 0x800000));
  Value* significand = b_.CreateSIToFP(b_.CreateOr(b_.CreateAnd(bits, Whole(x, 0x7fffff)), leading),
                                       x->getType()->getWithNewType(b_.getDoubleTy()));
  // The angle in quarter turns, modulo whole turns. The integer part is removed while the values are exact.
  Value* quarters = b_.CreateFMul(significand, QuartersPart(exponent, 0));
  // Adding 1.5 * 2^52 rounds to an integer, which is then in the low bits of the sum.
  Value* magic = Real(quarters, 6755399441055744.0);
  Value* sum = b_.CreateFAdd(quarters, magic);
  Value* fraction = b_.CreateFSub(quarters, b_.CreateFSub(sum, magic));
  fraction = MulAdd(significand, QuartersPart(exponent, 1), fraction);
  fraction = MulAdd(significand, QuartersPart(exponent, 2), fraction);
  Value* sum_bits = b_.CreateBitCast(sum, sum->getType()->getWithNewType(b_.getInt64Ty()));
  // Taylor polynomials: |r| is below 0.89, where the omitted terms are below 2^-34 of the result.
  Value* r = b_.CreateFMul(fraction, Real(fraction, 1.5707963267948966));
  Value* z = b_.CreateFMul(r, r);
  static constexpr double kSin[] = {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800};
  static constexpr double kCos[] = {1, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600};
  Value* sin = MulAdd(b_.CreateFMul(r, z), Polynomial(z, kSin), r);
  return {sin, Polynomial(z, kCos), b_.CreateTrunc(sum_bits, IntegersLike(x)), b_.CreateAnd(bits, Whole(x, INT32_MIN))};
}

Value* MathEmitter::Signed(Value* magnitude, Value* sign, llvm::Type* type) {
  Value* rounded = b_.CreateFPTrunc(magnitude, type);
  return b_.CreateBitCast(b_.CreateXor(b_.CreateBitCast(rounded, IntegersLike(rounded)), sign), type);
}

// Error below 0.51 ulp.
Value* MathEmitter::Sin(Value* x) {
  const Angle angle = ReduceAngle(x);
  Value* sine = b_.CreateSelect(IsOdd(angle.quarter), angle.cos, angle.sin);
  // Sine is negative in the third and fourth quarter.
  Value* flip = b_.CreateShl(b_.CreateAnd(angle.quarter, Whole(x, 2)), Whole(x, 30));
  return Signed(sine, b_.CreateXor(flip, angle.sign), x->getType());
}

// Error below 0.51 ulp.
Value* MathEmitter::Cos(Value* x) {
  const Angle angle = ReduceAngle(x);
  Value* cosine = b_.CreateSelect(IsOdd(angle.quarter), angle.sin, angle.cos);
  // Cosine is negative in the second and third quarter.
  Value* next = b_.CreateAdd(angle.quarter, Whole(x, 1));
  return Signed(cosine, b_.CreateShl(b_.CreateAnd(next, Whole(x, 2)), Whole(x, 30)), x->getType());
}

// Error below 0.51 ulp.
Value* MathEmitter::Tan(Value* x) {
  const Angle angle = ReduceAngle(x);
  Value* odd = IsOdd(angle.quarter);
  Value* tangent =
      b_.CreateFDiv(b_.CreateSelect(odd, angle.cos, angle.sin), b_.CreateSelect(odd, angle.sin, angle.cos));
  return Signed(tangent, b_.CreateXor(b_.CreateShl(angle.quarter, Whole(x, 31)), angle.sign), x->getType());
}

Value* MathEmitter::IsOdd(Value* whole) {
  return b_.CreateICmpNE(b_.CreateAnd(whole, Whole(whole, 1)), Whole(whole, 0));
}

}  // namespace lockstep::math
