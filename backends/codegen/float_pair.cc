#include "backends/codegen/float_pair.h"

namespace lockstep {
namespace {

using IrValue = llvm::Value;

// Returns x + y and its rounding error (Knuth).
FloatPair TwoSum(llvm::IRBuilderBase& b, IrValue* x, IrValue* y) {
  IrValue* sum = b.CreateFAdd(x, y);
  IrValue* of_y = b.CreateFSub(sum, x);
  IrValue* of_x = b.CreateFSub(sum, of_y);
  return {sum, b.CreateFAdd(b.CreateFSub(x, of_x), b.CreateFSub(y, of_y))};
}

// The same if |x| >= |y| (Dekker).
FloatPair FastTwoSum(llvm::IRBuilderBase& b, IrValue* x, IrValue* y) {
  IrValue* sum = b.CreateFAdd(x, y);
  return {sum, b.CreateFSub(y, b.CreateFSub(sum, x))};
}

// The rounding error of an infinite sum is NaN: returns `sum`, or `rounded` without an error if `sum` is not finite.
FloatPair IfFinite(llvm::IRBuilderBase& b, const FloatPair& sum, IrValue* rounded) {
  IrValue* nothing = b.CreateFSub(sum.high, sum.high);  // NaN if the sum is not finite
  IrValue* finite = b.CreateFCmpORD(nothing, nothing);
  return {b.CreateSelect(finite, sum.high, rounded),
          b.CreateSelect(finite, sum.low, llvm::Constant::getNullValue(sum.low->getType()))};
}

llvm::Type* WithBits(llvm::Type* type, unsigned bits) {
  return type->getWithNewType(llvm::IntegerType::get(type->getContext(), bits));
}

constexpr uint64_t kBitsOfFloat = 32;

}  // namespace

FloatPair AddToPair(llvm::IRBuilderBase& b, const FloatPair& sum, IrValue* x) {
  const FloatPair exact = TwoSum(b, sum.high, x);
  return IfFinite(b, FastTwoSum(b, exact.high, b.CreateFAdd(exact.low, sum.low)), exact.high);
}

FloatPair AddPairs(llvm::IRBuilderBase& b, const FloatPair& x, const FloatPair& y) {
  const FloatPair highs = TwoSum(b, x.high, y.high), lows = TwoSum(b, x.low, y.low);
  const FloatPair sum = FastTwoSum(b, highs.high, b.CreateFAdd(highs.low, lows.high));
  return IfFinite(b, FastTwoSum(b, sum.high, b.CreateFAdd(lows.low, sum.low)), highs.high);
}

IrValue* PackPair(llvm::IRBuilderBase& b, const FloatPair& pair) {
  llvm::Type* const word = WithBits(pair.high->getType(), kBitsOfFloat);
  llvm::Type* const wide = WithBits(pair.high->getType(), 2 * kBitsOfFloat);
  const auto widened = [&](IrValue* value) { return b.CreateZExt(b.CreateBitCast(value, word), wide); };
  return b.CreateOr(widened(pair.high), b.CreateShl(widened(pair.low), kBitsOfFloat));
}

FloatPair UnpackPair(llvm::IRBuilderBase& b, IrValue* packed) {
  llvm::Type* const word = WithBits(packed->getType(), kBitsOfFloat);
  llvm::Type* const type = packed->getType()->getWithNewType(b.getFloatTy());
  const auto part = [&](IrValue* value) { return b.CreateBitCast(b.CreateTrunc(value, word), type); };
  return {part(packed), part(b.CreateLShr(packed, kBitsOfFloat))};
}

}  // namespace lockstep
