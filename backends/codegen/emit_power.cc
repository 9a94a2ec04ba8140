// Powers of f32, and remainders of f32 divisions.

#include <limits>

#include "backends/codegen/emit_math.h"
#include "backends/codegen/emit_while.h"
#include "llvm/IR/Intrinsics.h"

namespace lockstep::math {

namespace {}  // namespace

// Error below 0.5001 ulp: computes e^(y log|x|) in f64, with the sign of x if y is odd.
Value* MathEmitter::Pow(Value* x, Value* y) {
  Value* magnitude = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* log = WideLog(Widened(magnitude));
  log = b_.CreateSelect(b_.CreateFCmpOEQ(x, Real(x, 0.0)), Real(log, -kInfinity), log);
  log = b_.CreateSelect(b_.CreateFCmpOEQ(magnitude, Real(x, kInfinity)), Real(log, kInfinity), log);
  // Beyond these bounds the result is infinite or 0.
  Value* exponent = b_.CreateFMul(Widened(y), log);
  Value* const limit = Real(exponent, 200.0);
  exponent = b_.CreateSelect(b_.CreateFCmpOGT(exponent, limit), limit, exponent);
  exponent = b_.CreateSelect(b_.CreateFCmpOLT(exponent, b_.CreateFNeg(limit)), b_.CreateFNeg(limit), exponent);
  const Exponential e = WideExp(exponent);
  Value* power = Narrowed(b_.CreateFMul(b_.CreateFAdd(e.cosh, e.sinh), e.up));
  // 1 to any power, including infinity, is 1.
  Value* const one = Real(x, 1.0);
  power = b_.CreateSelect(b_.CreateFCmpOEQ(magnitude, one), one, power);

  Value* const zero = Real(x, 0.0);
  Value* is_whole = b_.CreateFCmpOEQ(b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, y), y);
  Value* half = b_.CreateFMul(y, Real(y, 0.5));
  Value* is_even = b_.CreateFCmpOEQ(b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, half), half);
  Value* sign = b_.CreateSelect(b_.CreateAnd(is_whole, b_.CreateNot(is_even)), x, zero);
  power = WithSignOf(sign, power);
  // A finite negative number has only integer powers.
  Value* is_below = b_.CreateAnd(b_.CreateFCmpOLT(x, zero), b_.CreateFCmpOGT(x, Real(x, -kInfinity)));
  Value* is_nan = b_.CreateOr(b_.CreateFCmpUNO(x, y), b_.CreateAnd(is_below, b_.CreateNot(is_whole)));
  power = b_.CreateSelect(is_nan, Real(x, kNan), power);
  return b_.CreateSelect(b_.CreateOr(b_.CreateFCmpOEQ(x, one), b_.CreateFCmpOEQ(y, zero)), one, power);
}

// Exact. Long division in f64: in each step, subtracts the largest possible multiple of y 2^k, with k from the number
// of remaining digits. A quotient below 2^28 is truncated correctly, and it and its product with the 24 bits of y are
// exact.
Value* MathEmitter::Fmod(Value* x, Value* y) {
  constexpr int64_t kStep = 28;  // digits per step
  Value* rest = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, Widened(x));
  Value* const dividend = rest;
  Value* const divisor = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, Widened(y));
  llvm::Type* const i64 = rest->getType()->getWithNewType(b_.getInt64Ty());
  const auto exponent = [&](Value* of) {
    Value* bits = b_.CreateLShr(b_.CreateBitCast(of, i64), llvm::ConstantInt::get(i64, 52));
    return b_.CreateTrunc(bits, IntegersLike(of));
  };
  // At most 250 between finite numbers; infinite operands must not give an infinite factor.
  Value* k = b_.CreateSub(b_.CreateSub(exponent(dividend), exponent(divisor)), Whole(rest, kStep - 1));
  k = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, k, Whole(rest, 0));
  k = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, k, Whole(rest, 300));
  Value* factor = b_.CreateShl(b_.CreateZExt(b_.CreateAdd(k, Whole(rest, 1023)), i64), llvm::ConstantInt::get(i64, 52));
  Value* const first = b_.CreateFMul(divisor, b_.CreateBitCast(factor, rest->getType()));
  const auto left = [&](Value* of, Value* by) {
    Value* quotient = b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, b_.CreateFDiv(of, by));
    return MulAdd(b_.CreateFNeg(quotient), by, of);
  };
  using Values = std::vector<Value*>;
  const Values last = EmitWhile(
      b_, {rest, first}, [&](const Values& state) { return b_.CreateFCmpOGT(state[1], divisor); },
      [&](const Values& state) {
        Value* next = b_.CreateFMul(state[1], Real(divisor, 1.0 / (int64_t{1} << kStep)));
        next = b_.CreateSelect(b_.CreateFCmpOGT(next, divisor), next, divisor);
        return Values{left(state[0], state[1]), next};
      });
  rest = left(last[0], divisor);
  // A finite number is its own remainder modulo infinity; the computation above would give NaN from 0 times infinity.
  Value* const infinity = Real(rest, kInfinity);
  Value* stays = b_.CreateAnd(b_.CreateFCmpOEQ(divisor, infinity), b_.CreateFCmpOLT(dividend, infinity));
  return WithSignOf(x, Narrowed(b_.CreateSelect(stays, dividend, rest)));
}

}  // namespace lockstep::math
