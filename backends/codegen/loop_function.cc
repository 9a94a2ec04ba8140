#include "backends/codegen/loop_function.h"

#include "llvm/IR/Module.h"

namespace lockstep {

using IrValue = llvm::Value;

LoopFunction::LoopFunction(const Graph& body, const LoopPlan& plan, const EmitTarget& target, const std::string& name,
                           bool has_range, llvm::Module& module)
    : body_(body),
      plan_(plan),
      module_(module),
      b_(module.getContext()),
      function_([&] {
        llvm::Type *pointer = b_.getPtrTy(), *integer = b_.getInt64Ty();
        std::vector<llvm::Type*> arguments = {pointer, pointer};
        if (has_range) arguments.insert(arguments.end(), {integer, integer});
        auto* function = llvm::Function::Create(llvm::FunctionType::get(b_.getInt32Ty(), arguments, false),
                                                llvm::Function::ExternalLinkage, name, module);
        function->addFnAttr("prefer-vector-width", "512");
        function->addFnAttr(llvm::Attribute::NoUnwind);
        return function;
      }()),
      error_([&] {
        b_.SetInsertPoint(llvm::BasicBlock::Create(module.getContext(), "entry", function_));
        IrValue* error = b_.CreateAlloca(b_.getInt32Ty());
        b_.CreateStore(b_.getInt32(kLoopOk), error);
        return error;
      }()),
      emit_(b_, target.has_fma, error_),
      index_(plan.extents.size()),
      scalars_(plan.elements.size()),
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

void LoopFunction::For(IrValue* low, IrValue* high, int64_t step, const std::function<void(IrValue*)>& body) {
  const auto* constant_low = llvm::dyn_cast<llvm::ConstantInt>(low);
  const auto* constant_high = llvm::dyn_cast<llvm::ConstantInt>(high);
  const bool known = constant_low && constant_high;
  const int64_t trip = known ? constant_high->getSExtValue() - constant_low->getSExtValue() : 0;
  if (known && trip <= 0) return;
  if (known && trip <= step) return body(low);
  llvm::LLVMContext& context = module_.getContext();
  auto* loop = llvm::BasicBlock::Create(context, "loop", function_);
  auto* done = llvm::BasicBlock::Create(context, "done", function_);
  llvm::BasicBlock* before = b_.GetInsertBlock();
  if (known) b_.CreateBr(loop);
  else b_.CreateCondBr(b_.CreateICmpSLT(low, high), loop, done);
  b_.SetInsertPoint(loop);
  llvm::PHINode* i = b_.CreatePHI(b_.getInt64Ty(), 2);
  i->addIncoming(low, before);
  const Values outside = scalars_;  // what is computed in the loop is not known behind it
  body(i);
  scalars_ = outside;
  IrValue* next = b_.CreateNSWAdd(i, Int(step));
  i->addIncoming(next, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(next, high), loop, done);
  b_.SetInsertPoint(done);
}

void LoopFunction::ForVectors(IrValue* low, IrValue* high, const std::function<void(IrValue*, IrValue*)>& body) {
  const int64_t lanes = plan_.lanes;
  IrValue* count = b_.CreateNSWSub(high, low);
  IrValue* whole = b_.CreateNSWAdd(low, b_.CreateAnd(count, Int(-lanes)));
  For(low, whole, lanes, [&](IrValue* i) { body(i, nullptr); });
  // Where the last dimension's extent and its pieces are whole vectors, nothing can be left.
  const auto whole_vectors = [&](int64_t length) { return length % lanes == 0; };
  const bool pieces = plan_.vector_reduced()
                          ? plan_.chunk_dim != plan_.vector_dim() || whole_vectors(plan_.chunk_length)
                          : plan_.num_blocks() == 1 || whole_vectors(plan_.block);
  if (pieces && whole_vectors(plan_.extents.back())) return;
  For(whole, high, lanes, [&](IrValue* i) { body(i, Mask(b_.CreateNSWSub(high, i))); });
}

void LoopFunction::OpenUnit(IrValue* unit, bool chunked) {
  const auto split = [&](int64_t extent) -> IrValue* {  // the lowest digit of what is left of `unit`
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
      b_.CreateStore(emit_.Identity(reduction.kind, SumDType(reduction), VectorType(type)), AccumulatorPointer(r, i));
    });
  };
  if (plan_.vector_reduced()) clear(nullptr);
  else if (!plan_.reductions.empty()) For(low_, high_, plan_.lanes, clear);
  EmitReducedLoops(0, phase, needed);
  if (plan_.vector_reduced()) {
    for_each_accumulator([&](size_t r, const Reduction& reduction, llvm::Type* type) {
      reduced_[r] = emit_.CombineLanes(reduction.kind, SumDType(reduction),
                                       b_.CreateLoad(VectorType(type), AccumulatorPointer(r, nullptr)));
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
    const DType dtype = SumDType(reduction);
    IrValue* operand = emit_.Convert(VectorOf(reduction.operand, vectors), reduction.dtype, dtype);
    if (mask) operand = b_.CreateSelect(mask, operand, emit_.Identity(reduction.kind, dtype, operand->getType()));
    IrValue* pointer = AccumulatorPointer(r, i);
    IrValue* sum = b_.CreateLoad(operand->getType(), pointer);
    b_.CreateStore(emit_.Combine(reduction.kind, dtype, sum, operand), pointer);
  }
  // Everything has been read by now: a result may lie where an operand lay.
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
    IrValue* base = pointers_[body_.inputs().size() + static_cast<size_t>(output.result)];
    IrValue* pointer = ElementPointer(base, output.dtype, Position(output.at));
    b_.CreateAlignedStore(emit_.ToStored(output.dtype, Uniform(output.element)), pointer,
                          llvm::Align(SizeOf(output.dtype)));
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
    const DType dtype = SumDType(reduction);
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

}  // namespace lockstep
