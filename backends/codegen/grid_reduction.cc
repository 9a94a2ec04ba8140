// The part of GridFunction that communicates between threads. It combines the accumulators of a group into one value,
// through registers, the memory of the block, or scratch memory.

#include <algorithm>

#include "backends/codegen/grid_function.h"
#include "llvm/IR/Module.h"

namespace lockstep {

using IrValue = llvm::Value;

llvm::Type* GridFunction::MemoryType(llvm::Type* type) {
  return type->isIntOrIntVectorTy(1) ? type->getWithNewType(b_.getInt8Ty()) : type;
}
IrValue* GridFunction::ToMemory(IrValue* value) { return b_.CreateZExtOrTrunc(value, MemoryType(value->getType())); }
IrValue* GridFunction::FromMemory(IrValue* stored, llvm::Type* type) { return b_.CreateZExtOrTrunc(stored, type); }

IrValue* GridFunction::Exchange(IrValue* value, int mask) {
  llvm::Type* type = value->getType();
  const unsigned bits = type->getScalarSizeInBits();
  llvm::Type* integer = b_.getIntNTy(bits);
  IrValue* word = b_.CreateBitCast(value, integer);
  if (bits <= 32) {
    word = machine_.ShuffleXor(b_, b_.CreateZExt(word, b_.getInt32Ty()), mask);
    return b_.CreateBitCast(b_.CreateTrunc(word, integer), type);
  }
  IrValue* low = machine_.ShuffleXor(b_, b_.CreateTrunc(word, b_.getInt32Ty()), mask);
  IrValue* high = machine_.ShuffleXor(b_, b_.CreateTrunc(b_.CreateLShr(word, Int(32)), b_.getInt32Ty()), mask);
  word = b_.CreateOr(b_.CreateZExt(low, integer), b_.CreateShl(b_.CreateZExt(high, integer), Int(32)));
  return b_.CreateBitCast(word, type);
}

IrValue* GridFunction::Combine(size_t r, IrValue* x, IrValue* y) {
  if (IsInPairs(r)) return PackPair(b_, AddPairs(b_, UnpackPair(b_, x), UnpackPair(b_, y)));
  const Reduction& reduction = plan_.reductions[r];
  return emit_.Combine(reduction.kind, reduction.sum_dtype(), x, y);
}

IrValue* GridFunction::CombineNeighbours(size_t r, IrValue* value, int64_t count) {
  for (int64_t mask = 1; mask < count; mask *= 2) {
    IrValue* other = Exchange(value, static_cast<int>(mask));
    // Both threads use the lower thread's value as the first operand, so that both compute the same bits.
    IrValue* is_lower = b_.CreateICmpEQ(b_.CreateAnd(thread_, Number(mask)), Number(0));
    IrValue* first = b_.CreateSelect(is_lower, value, other);
    IrValue* second = b_.CreateSelect(is_lower, other, value);
    value = Combine(r, first, second);
  }
  return value;
}

IrValue* GridFunction::CombineShared(size_t r, IrValue* value, IrValue* writes, IrValue* to, IrValue* from,
                                     int64_t step, int64_t count) {
  llvm::Type* type = value->getType();
  llvm::Type* stored = MemoryType(type);
  constexpr uint64_t kSharedAlignment = 16;
  const llvm::Align align(std::min(kSharedAlignment, stored->getPrimitiveSizeInBits().getFixedValue() / 8));
  if (shared_) machine_.Barrier(b_);  // others may still read the values of an earlier reduction
  else shared_ = machine_.Shared(b_, plan_.shared_bytes());
  If(writes, [&] { b_.CreateAlignedStore(ToMemory(value), b_.CreateGEP(stored, shared_, to), align); });
  machine_.Barrier(b_);
  const auto part = [&](IrValue* i) {
    IrValue* place = b_.CreateAdd(from, b_.CreateMul(i, Number(step)));
    return FromMemory(b_.CreateAlignedLoad(stored, b_.CreateGEP(stored, shared_, place), align), type);
  };
  b_.CreateStore(part(Number(0)), accumulators_[r]);
  For(Number(1), Number(count), 1, [&](IrValue* i) {
    IrValue* sum = b_.CreateLoad(type, accumulators_[r]);
    b_.CreateStore(Combine(r, sum, part(i)), accumulators_[r]);
  });
  return b_.CreateLoad(type, accumulators_[r]);
}

IrValue* GridFunction::CombineGroup(size_t r) {
  if (part_ == Part::kRun && IsInPairs(r)) {
    const auto load = [&](IrValue* part) { return b_.CreateLoad(VectorType(b_.getFloatTy()), part); };
    b_.CreateStore(PackPair(b_, {load(pairs_[r].high), load(pairs_[r].low)}), accumulators_[r]);
  }
  IrValue* value = b_.CreateLoad(AccumulatorType(r), accumulators_[r]);
  const bool is_finish = part_ == Part::kFinish;
  if (!plan_.vector_reduced() && !is_finish) {
    if (splits() == 1) return value;
    return CombineShared(r, value, b_.getTrue(), thread_, group_, plan_.groups(), splits());
  }
  if (plan_.lanes > 1 && !is_finish) {
    value = emit_.CombineLanes(value, [&](IrValue* x, IrValue* y) { return Combine(r, x, y); });
  }
  if (splits() <= GridPlan::kWarp) return CombineNeighbours(r, value, splits());
  value = CombineNeighbours(r, value, GridPlan::kWarp);
  const int64_t warps = splits() / GridPlan::kWarp;
  IrValue* is_first = b_.CreateICmpEQ(b_.CreateURem(thread_, Number(GridPlan::kWarp)), Number(0));
  IrValue* warp = b_.CreateUDiv(thread_, Number(GridPlan::kWarp));
  return CombineShared(r, value, is_first, warp, b_.CreateMul(group_, Number(warps)), 1, warps);
}

// --- Chunks ----------------------------------------------------------------------------------------------------------

IrValue* GridFunction::ScratchPointer(size_t r, IrValue* chunk) {
  IrValue* scratch = function_->getArg(static_cast<unsigned>(function_->arg_size()) - 3);
  IrValue* base =
      b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), scratch, static_cast<uint64_t>(plan_.scratch_stride()) * r);
  const int64_t neighbours = part_ == Part::kRun && keeps_last() ? plan_.lanes : 1;
  const auto wide = [&](IrValue* number) { return b_.CreateZExt(number, b_.getInt64Ty()); };
  IrValue* place =
      b_.CreateAdd(b_.CreateMul(wide(chunk), Int(plan_.num_kept())), b_.CreateMul(wide(kept_), Int(neighbours)));
  return b_.CreateGEP(MemoryType(CombinedType(r)), base, place);
}

void GridFunction::SaveChunk() {
  If(IsWriter(), [&] {
    for (size_t r = 0; r < plan_.reductions.size(); ++r) {
      IrValue* stored = ToMemory(reduced_[r]);
      const llvm::Align align(stored->getType()->getPrimitiveSizeInBits().getFixedValue() / 8);
      b_.CreateAlignedStore(stored, ScratchPointer(r, chunk_), align);
    }
  });
}

void GridFunction::EmitFinish() {
  for (size_t r = 0; r < plan_.reductions.size(); ++r) {
    const Reduction& reduction = plan_.reductions[r];
    llvm::Type* type = AccumulatorType(r);
    b_.CreateStore(
        IsInPairs(r) ? llvm::Constant::getNullValue(type) : emit_.Identity(reduction.kind, reduction.sum_dtype(), type),
        accumulators_[r]);
    If(active_, [&] {
      For(split_, Number(plan_.num_chunks), splits(), [&](IrValue* chunk) {
        IrValue* part = FromMemory(b_.CreateLoad(MemoryType(type), ScratchPointer(r, chunk)), type);
        IrValue* sum = b_.CreateLoad(type, accumulators_[r]);
        b_.CreateStore(Combine(r, sum, part), accumulators_[r]);
      });
    });
    reduced_[r] = CombineGroup(r);
  }
  EmitEpilogue();
}

}  // namespace lockstep
