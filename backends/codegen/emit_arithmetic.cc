// Arithmetic of two operands that needs more than one instruction: NaN, integer division by zero, and shifts by more
// bits than the type has.

#include "backends/codegen/emit_element.h"
#include "backends/codegen/emit_while.h"
#include "llvm/IR/Intrinsics.h"

namespace lockstep {

llvm::Value* ElementEmitter::Max(DType dtype, llvm::Value* x, llvm::Value* y) {
  if (target_.has_maximum && x->getType()->getScalarType()->isFloatTy())
    return b_.CreateBinaryIntrinsic(llvm::Intrinsic::maximum, x, y);
  if (IsFloat(dtype)) return b_.CreateSelect(b_.CreateOr(b_.CreateFCmpUNO(x, x), b_.CreateFCmpOGT(x, y)), x, y);
  if (dtype == DType::kBool) return b_.CreateOr(x, y);
  return b_.CreateBinaryIntrinsic(IsSigned(dtype) ? llvm::Intrinsic::smax : llvm::Intrinsic::umax, x, y);
}

llvm::Value* ElementEmitter::Min(DType dtype, llvm::Value* x, llvm::Value* y) {
  if (target_.has_maximum && x->getType()->getScalarType()->isFloatTy())
    return b_.CreateBinaryIntrinsic(llvm::Intrinsic::minimum, x, y);
  if (IsFloat(dtype)) return b_.CreateSelect(b_.CreateOr(b_.CreateFCmpUNO(x, x), b_.CreateFCmpOLT(x, y)), x, y);
  if (dtype == DType::kBool) return b_.CreateAnd(x, y);
  return b_.CreateBinaryIntrinsic(IsSigned(dtype) ? llvm::Intrinsic::smin : llvm::Intrinsic::umin, x, y);
}

llvm::Value* ElementEmitter::Divide(DType dtype, llvm::Value* x, llvm::Value* y) {
  if (IsFloat(dtype)) return b_.CreateFDiv(x, y);
  llvm::Value *zero = Constant(x, 0), *one = Constant(x, 1);
  llvm::Value* by_zero = b_.CreateICmpEQ(y, zero);
  ReportIfAny(by_zero);
  llvm::Value* quotient;
  if (IsSigned(dtype)) {
    // Hardware traps on division of the lowest integer by -1 and on division by zero. Both are divided by 1 instead.
    llvm::Value* by_minus_one = b_.CreateICmpEQ(y, Constant(x, -1));
    quotient = b_.CreateSDiv(x, b_.CreateSelect(b_.CreateOr(by_zero, by_minus_one), one, y));
    quotient = b_.CreateSelect(by_minus_one, b_.CreateNeg(x), quotient);
  } else {
    quotient = b_.CreateUDiv(x, b_.CreateSelect(by_zero, one, y));
  }
  return b_.CreateSelect(by_zero, zero, quotient);
}

bool ElementEmitter::DividesByOne(llvm::Value* divisor) const {
  return !target_.has_division && divisor->getType()->isFloatTy();
}

llvm::Value* ElementEmitter::Fmod(DType dtype, llvm::Value* x, llvm::Value* y) {
  llvm::Value* both[] = {x, y};
  if (dtype == DType::kF64) return CallForEachLane("fmod", both);
  if (IsFloat(dtype)) return math_.Fmod(x, y);
  llvm::Value *zero = Constant(x, 0), *one = Constant(x, 1);
  llvm::Value* by_zero = b_.CreateICmpEQ(y, zero);
  ReportIfAny(by_zero);
  // The same cases as in Divide. The remainder of a division by 1 is 0.
  if (!IsSigned(dtype)) return b_.CreateURem(x, b_.CreateSelect(by_zero, one, y));
  return b_.CreateSRem(x, b_.CreateSelect(b_.CreateOr(by_zero, b_.CreateICmpEQ(y, Constant(x, -1))), one, y));
}

llvm::Value* ElementEmitter::Remainder(DType dtype, llvm::Value* x, llvm::Value* y) {
  llvm::Value *rest = Fmod(dtype, x, y), *zero = Constant(x, 0);
  if (!IsSigned(dtype)) return rest;
  llvm::Value* signs_differ =
      b_.CreateXor(Compare(dtype, Comparison::kLt, rest, zero), Compare(dtype, Comparison::kLt, y, zero));
  if (!IsFloat(dtype)) {
    llvm::Value* differs = b_.CreateAnd(b_.CreateICmpNE(rest, zero), signs_differ);
    return b_.CreateSelect(differs, b_.CreateAdd(rest, y), rest);
  }
  llvm::Value* moved = b_.CreateSelect(signs_differ, b_.CreateFAdd(rest, y), rest);
  llvm::Value* zero_of_y = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, zero, y);
  return b_.CreateSelect(b_.CreateFCmpOEQ(rest, zero), zero_of_y, moved);
}

llvm::Value* ElementEmitter::Power(DType dtype, llvm::Value* x, llvm::Value* y) {
  llvm::Value* both[] = {x, y};
  if (dtype == DType::kF64) return CallForEachLane("pow", both);
  if (IsFloat(dtype)) return math_.Pow(x, y);
  llvm::Value *zero = Constant(x, 0), *one = Constant(x, 1), *rest = y;
  llvm::Value* is_negative = IsSigned(dtype) ? b_.CreateICmpSLT(y, zero) : nullptr;
  if (is_negative) {
    ReportIfAny(b_.CreateAnd(b_.CreateICmpEQ(x, zero), is_negative));
    rest = b_.CreateSelect(is_negative, zero, y);
  }
  // Computes by repeated squaring: one step for each bit of the largest exponent.
  using Values = std::vector<llvm::Value*>;
  llvm::Value* power = EmitWhile(
      b_, {rest, x, one}, [&](const Values& state) { return b_.CreateICmpNE(state[0], zero); },
      [&](const Values& state) {
        llvm::Value* is_odd = b_.CreateICmpNE(b_.CreateAnd(state[0], one), zero);
        return Values{b_.CreateLShr(state[0], one), b_.CreateMul(state[1], state[1]),
                      b_.CreateSelect(is_odd, b_.CreateMul(state[2], state[1]), state[2])};
      })[2];
  if (!is_negative) return power;
  // A negative power is truncated toward zero: only 1 and -1 have a nonzero result. A negative power of zero is an
  // error and gives 0.
  llvm::Value* is_odd = b_.CreateICmpNE(b_.CreateAnd(y, one), zero);
  llvm::Value* of_minus_one = b_.CreateSelect(is_odd, x, one);
  llvm::Value* truncated = b_.CreateSelect(b_.CreateICmpEQ(x, Constant(x, -1)), of_minus_one,
                                           b_.CreateSelect(b_.CreateICmpEQ(x, one), one, zero));
  return b_.CreateSelect(is_negative, truncated, power);
}

llvm::Value* ElementEmitter::Within(DType dtype, llvm::Value* x, int64_t low, int64_t high) {
  llvm::Type* type = x->getType()->getWithNewType(b_.getInt64Ty());
  const auto bound = [&](int64_t value) { return llvm::ConstantInt::getSigned(type, value); };
  llvm::Value* wide = IsSigned(dtype) ? b_.CreateSExt(x, type) : b_.CreateZExt(x, type);
  llvm::Value* outside = b_.CreateOr(b_.CreateICmpSLT(wide, bound(low)), b_.CreateICmpSGE(wide, bound(high)));
  // A value that does not fit in 63 bits is above every bound.
  if (dtype == DType::kU64) outside = b_.CreateOr(b_.CreateICmpULT(bound(INT64_MAX), wide), outside);
  ReportIfAny(outside);
  return b_.CreateTrunc(b_.CreateSelect(outside, bound(low), wide), x->getType());
}

llvm::Value* ElementEmitter::ShiftLeft(llvm::Value* x, llvm::Value* y) {
  // The unsigned comparison treats a negative y as large. LLVM does not define shifts by too many bits.
  llvm::Value *zero = Constant(x, 0),
              *is_within = b_.CreateICmpULT(y, Constant(x, x->getType()->getScalarSizeInBits()));
  return b_.CreateSelect(is_within, b_.CreateShl(x, b_.CreateSelect(is_within, y, zero)), zero);
}

llvm::Value* ElementEmitter::ShiftRight(DType dtype, llvm::Value* x, llvm::Value* y) {
  const unsigned bits = x->getType()->getScalarSizeInBits();
  llvm::Value *zero = Constant(x, 0), *is_within = b_.CreateICmpULT(y, Constant(x, bits));
  // Shifting all bits but the sign out leaves copies of the sign.
  if (IsSigned(dtype)) return b_.CreateAShr(x, b_.CreateSelect(is_within, y, Constant(x, bits - 1)));
  return b_.CreateSelect(is_within, b_.CreateLShr(x, b_.CreateSelect(is_within, y, zero)), zero);
}

}  // namespace lockstep
