#include "backends/codegen/loop_function.h"

#include "llvm/IR/Module.h"

namespace lockstep {

using IrValue = llvm::Value;

namespace {

llvm::Function* Declare(const std::string& name, bool has_range, llvm::Module& module) {
  llvm::LLVMContext& context = module.getContext();
  llvm::Type *pointer = llvm::PointerType::get(context, 0), *integer = llvm::Type::getInt64Ty(context);
  std::vector<llvm::Type*> arguments = {pointer, pointer};
  if (has_range) arguments.insert(arguments.end(), {integer, integer});
  auto* function = llvm::Function::Create(llvm::FunctionType::get(llvm::Type::getInt32Ty(context), arguments, false),
                                          llvm::Function::ExternalLinkage, name, module);
  function->addFnAttr("prefer-vector-width", "512");
  function->addFnAttr(llvm::Attribute::NoUnwind);
  return function;
}

}  // namespace

LoopFunction::LoopFunction(const Graph& body, const LoopPlan& plan, const EmitTarget& target, const std::string& name,
                           bool has_range, llvm::Module& module)
    : LoopElements(body, plan, {.lanes = plan.lanes, .has_gather = true, .is_aligned = false}, target,
                   Declare(name, has_range, module)),
      plan_(plan),
      reduced_(plan.reductions.size()) {
  for (size_t i = 0; i < body.inputs().size() + body.results().size(); ++i) {
    pointers_.push_back(b_.CreateLoad(b_.getPtrTy(), b_.CreateConstGEP1_64(b_.getPtrTy(), function_->getArg(0), i)));
  }
  const int64_t vectors = plan.vector_reduced() ? 1 : (plan.block + plan.lanes - 1) / plan.lanes;
  for (const Reduction& reduction : plan.reductions) {
    llvm::Type* vector = VectorType(SumType(reduction));
    llvm::AllocaInst* memory =
        b_.CreateAlloca(vectors == 1 ? vector : llvm::ArrayType::get(vector, static_cast<uint64_t>(vectors)));
    memory->setAlignment(llvm::Align(64));
    accumulators_.push_back(memory);
  }
}

void LoopFunction::ForVectors(IrValue* low, IrValue* high, const std::function<void(IrValue*, IrValue*)>& body) {
  const int64_t lanes = plan_.lanes;
  IrValue* count = b_.CreateNSWSub(high, low);
  IrValue* whole = b_.CreateNSWAdd(low, b_.CreateAnd(count, Int(-lanes)));
  For(low, whole, lanes, [&](IrValue* i) { body(i, nullptr); });
  // Nothing remains if the last dimension's extent and its pieces are whole vectors.
  const auto whole_vectors = [&](int64_t length) { return length % lanes == 0; };
  const bool pieces = plan_.vector_reduced()
                          ? plan_.chunk_dim != plan_.vector_dim() || whole_vectors(plan_.chunk_length)
                          : plan_.num_blocks() == 1 || whole_vectors(plan_.block);
  if (pieces && whole_vectors(plan_.extents.back())) return;
  For(whole, high, lanes, [&](IrValue* i) { body(i, Mask(b_.CreateNSWSub(high, i))); });
}

void LoopFunction::OpenUnit(IrValue* unit, bool chunked) {
  const auto split = [&](int64_t extent) -> IrValue* {  // removes the lowest digit of `unit`
    if (extent == 1) return Int(0);
    IrValue* digit = b_.CreateURem(unit, Int(extent));
    unit = b_.CreateUDiv(unit, Int(extent));
    return digit;
  };
  const auto range = [&](IrValue* i, int64_t length, int64_t pieces, int64_t extent) -> std::pair<IrValue*, IrValue*> {
    if (pieces == 1) return {Int(0), Int(extent)};
    IrValue* low = b_.CreateNSWMul(i, Int(length));
    IrValue* high = b_.CreateNSWAdd(low, Int(length));
    if (extent % length != 0) high = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, high, Int(extent));
    return {low, high};
  };
  index_.assign(index_.size(), nullptr);
  chunk_ = Int(0);
  if (plan_.num_chunks > 1 && chunked) {
    chunk_ = split(plan_.num_chunks);
    std::tie(chunk_low_, chunk_high_) =
        range(chunk_, plan_.chunk_length, plan_.num_chunks, plan_.extents[static_cast<size_t>(plan_.chunk_dim)]);
  }
  const int64_t last = plan_.extents.back();
  if (!plan_.vector_reduced())
    std::tie(low_, high_) = range(split(plan_.num_blocks()), plan_.block, plan_.num_blocks(), last);
  else if (plan_.chunk_dim == plan_.vector_dim()) std::tie(low_, high_) = std::pair(chunk_low_, chunk_high_);
  else std::tie(low_, high_) = std::pair(Int(0), Int(last));
  for (size_t k = plan_.extents.size() - 1; k-- > 0;) {
    if (!plan_.reduced[k]) index_[k] = split(plan_.extents[k]);
  }
  scalars_.assign(scalars_.size(), nullptr);
  reduced_known_ = 0;
}

void LoopFunction::EmitRun() {
  For(function_->getArg(2), function_->getArg(3), 1, [&](IrValue* unit) {
    OpenUnit(unit, true);
    for (int phase = 0; phase < plan_.num_phases; ++phase) EmitPhase(phase);
    if (plan_.num_chunks > 1) SaveChunk();
    else EmitEpilogue();
  });
  Return();
}

void LoopFunction::EmitFinish() {
  For(Int(0), Int(plan_.info.extent / plan_.num_chunks), 1, [&](IrValue* unit) {
    OpenUnit(unit, false);
    CombineChunks();
    EmitEpilogue();
  });
  Return();
}

void LoopFunction::Return() { b_.CreateRet(b_.CreateLoad(b_.getInt32Ty(), error_)); }

void LoopFunction::EmitPhase(int phase) {
  const std::vector<bool> needed = plan_.NeededIn(phase);
  EmitUniforms(needed);
  const auto for_each_accumulator = [&](const auto& body) {
    for (size_t r = 0; r < plan_.reductions.size(); ++r) {
      if (plan_.reductions[r].phase == phase) body(r, plan_.reductions[r], SumType(plan_.reductions[r]));
    }
  };
  const auto clear = [&](IrValue* i) {
    for_each_accumulator([&](size_t r, const Reduction& reduction, llvm::Type* type) {
      b_.CreateStore(emit_.Identity(reduction.kind, reduction.sum_dtype(), VectorType(type)), AccumulatorPointer(r, i));
    });
  };
  if (plan_.vector_reduced()) clear(nullptr);
  else if (!plan_.reductions.empty()) For(low_, high_, plan_.lanes, clear);
  EmitReducedLoops(0, phase, needed);
  if (plan_.vector_reduced()) {
    for_each_accumulator([&](size_t r, const Reduction& reduction, llvm::Type* type) {
      reduced_[r] = emit_.CombineLanes(
          b_.CreateLoad(VectorType(type), AccumulatorPointer(r, nullptr)),
          [&](IrValue* x, IrValue* y) { return emit_.Combine(reduction.kind, reduction.sum_dtype(), x, y); });
    });
  }
  reduced_known_ = phase + 1;
}

void LoopFunction::EmitReducedLoops(size_t dim, int phase, const std::vector<bool>& needed) {
  if (dim + 1 == plan_.extents.size()) {
    ForVectors(low_, high_, [&](IrValue* i, IrValue* mask) { EmitVector(phase, needed, i, mask); });
    return;
  }
  if (!plan_.reduced[dim]) return EmitReducedLoops(dim + 1, phase, needed);
  const bool chunked = plan_.chunk_dim == static_cast<int64_t>(dim);
  For(chunked ? chunk_low_ : Int(0), chunked ? chunk_high_ : Int(plan_.extents[dim]), 1, [&](IrValue* i) {
    index_[dim] = i;
    EmitUniforms(needed);
    EmitReducedLoops(dim + 1, phase, needed);
    index_[dim] = nullptr;
  });
}

void LoopFunction::EmitVector(int phase, const std::vector<bool>& needed, IrValue* i, IrValue* mask) {
  const Values vectors = EmitVectors(needed, i, mask);
  for (size_t r = 0; r < plan_.reductions.size(); ++r) {
    const Reduction& reduction = plan_.reductions[r];
    if (reduction.phase != phase) continue;
    const DType dtype = reduction.sum_dtype();
    IrValue* operand = emit_.Convert(VectorOf(reduction.operand, vectors), reduction.dtype, dtype);
    if (mask) operand = b_.CreateSelect(mask, operand, emit_.Identity(reduction.kind, dtype, operand->getType()));
    IrValue* pointer = AccumulatorPointer(r, i);
    IrValue* sum = b_.CreateLoad(operand->getType(), pointer);
    b_.CreateStore(emit_.Combine(reduction.kind, dtype, sum, operand), pointer);
  }
  // All operands have been read by now: a result may overwrite an operand.
  for (const Output& output : plan_.outputs) {
    if (!output.after_reduction && output.phase == phase) StoreVector(output, VectorOf(output.element, vectors), mask);
  }
  index_.back() = nullptr;
}

void LoopFunction::EmitEpilogue() {
  const std::vector<bool> needed = plan_.NeededIn(plan_.num_phases);
  EmitUniforms(needed);
  if (!plan_.vector_reduced()) {
    ForVectors(low_, high_, [&](IrValue* i, IrValue* mask) {
      const Values vectors = EmitVectors(needed, i, mask);
      for (const Output& output : plan_.outputs) {
        if (output.after_reduction) StoreVector(output, VectorOf(output.element, vectors), mask);
      }
      index_.back() = nullptr;
    });
    return;
  }
  for (const Output& output : plan_.outputs) {
    if (!output.after_reduction) continue;
    StoreScalar(output, Uniform(output.element));
  }
}

void LoopFunction::SaveChunk() {
  for (size_t r = 0; r < plan_.reductions.size(); ++r) {
    if (plan_.vector_reduced()) {
      b_.CreateStore(reduced_[r], ScratchPointer(r, chunk_));
      continue;
    }
    ForVectors(low_, high_, [&](IrValue* i, IrValue* mask) {
      index_.back() = i;
      IrValue* sum = b_.CreateLoad(VectorType(SumType(plan_.reductions[r])), AccumulatorPointer(r, i));
      const llvm::Align align(SizeOf(plan_.reductions[r].dtype) > 2 ? 4 : 1);
      if (mask) b_.CreateMaskedStore(sum, ScratchPointer(r, chunk_), align, mask);
      else b_.CreateAlignedStore(sum, ScratchPointer(r, chunk_), align);
      index_.back() = nullptr;
    });
  }
}

void LoopFunction::CombineChunks() {
  for (size_t r = 0; r < plan_.reductions.size(); ++r) {
    const Reduction& reduction = plan_.reductions[r];
    const DType dtype = reduction.sum_dtype();
    llvm::Type* scalar = SumType(reduction);
    const auto combine = [&](llvm::Type* type, IrValue* accumulator, IrValue* mask) {
      b_.CreateStore(emit_.Identity(reduction.kind, dtype, type), accumulator);
      For(Int(0), Int(plan_.num_chunks), 1, [&](IrValue* chunk) {
        IrValue* pointer = ScratchPointer(r, chunk);
        const llvm::Align align(SizeOf(reduction.dtype) > 2 ? 4 : 1);
        IrValue* part;
        if (mask) part = b_.CreateMaskedLoad(type, pointer, align, mask);
        else part = b_.CreateAlignedLoad(type, pointer, align);
        b_.CreateStore(emit_.Combine(reduction.kind, dtype, b_.CreateLoad(type, accumulator), part), accumulator);
      });
    };
    if (plan_.vector_reduced()) {
      combine(scalar, accumulators_[r], nullptr);
      reduced_[r] = b_.CreateLoad(scalar, accumulators_[r]);
    } else {
      ForVectors(low_, high_, [&](IrValue* i, IrValue* mask) {
        index_.back() = i;
        combine(VectorType(scalar), AccumulatorPointer(r, i), mask);
        index_.back() = nullptr;
      });
    }
  }
  reduced_known_ = plan_.num_phases;
}

// --- Accumulators ---------------------------------------------------------------------------------------------------

IrValue* LoopFunction::Mask(IrValue* count) {
  std::vector<llvm::Constant*> lanes;
  for (unsigned lane = 0; lane < plan_.lanes; ++lane) lanes.push_back(b_.getInt32(lane));
  return b_.CreateICmpULT(llvm::ConstantVector::get(lanes), Splat(b_.CreateTrunc(count, b_.getInt32Ty())));
}

IrValue* LoopFunction::AccumulatorPointer(size_t reduction, IrValue* i) {
  IrValue* base = accumulators_[reduction];
  if (plan_.vector_reduced() || plan_.block <= plan_.lanes) return base;
  llvm::Type* vector = VectorType(SumType(plan_.reductions[reduction]));
  return b_.CreateInBoundsGEP(vector, base, b_.CreateUDiv(b_.CreateNSWSub(i, low_), Int(plan_.lanes)));
}

IrValue* LoopFunction::ScratchPointer(size_t reduction, IrValue* chunk) {
  IrValue* base = b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), function_->getArg(1),
                                                static_cast<uint64_t>(plan_.scratch_stride()) * reduction);
  IrValue* position =
      b_.CreateNSWAdd(b_.CreateNSWMul(chunk, Int(plan_.num_kept())), Position(ReducedElement(reduction).at));
  return b_.CreateInBoundsGEP(SumType(plan_.reductions[reduction]), base, position);
}

IrValue* LoopFunction::ReducedScalar(size_t reduction) {
  if (plan_.reductions[reduction].phase >= reduced_known_) return nullptr;
  if (plan_.vector_reduced()) return reduced_[reduction];
  return b_.CreateLoad(SumType(plan_.reductions[reduction]), AccumulatorPointer(reduction, low_));
}

IrValue* LoopFunction::ReducedVector(size_t reduction, IrValue* i) {
  return b_.CreateLoad(VectorType(SumType(plan_.reductions[reduction])), AccumulatorPointer(reduction, i));
}

}  // namespace lockstep
