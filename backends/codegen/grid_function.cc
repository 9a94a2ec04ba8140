#include "backends/codegen/grid_function.h"

#include <limits>

#include "llvm/IR/Module.h"

namespace lockstep {

using IrValue = llvm::Value;

namespace {

llvm::Function* Declare(const std::string& name, size_t pointers, ThreadEmitter& machine, int64_t threads,
                        llvm::Module& module) {
  llvm::LLVMContext& context = module.getContext();
  std::vector<llvm::Type*> arguments(pointers, llvm::PointerType::get(context, machine.address_space()));
  arguments.push_back(llvm::Type::getInt32Ty(context));
  auto* function = llvm::Function::Create(llvm::FunctionType::get(llvm::Type::getVoidTy(context), arguments, false),
                                          llvm::Function::ExternalLinkage, name, module);
  function->addFnAttr(llvm::Attribute::NoUnwind);
  machine.DeclareKernel(*function, threads);
  return function;
}

// Counts points, including those beyond the last that fill a whole block.
bool FitsInt32(const GridPlan& plan) {
  return plan.num_points() + plan.num_kept() * GridPlan::kWarp + plan.threads * plan.lanes <
         std::numeric_limits<int32_t>::max();
}

}  // namespace

GridFunction::GridFunction(const Graph& body, const GridPlan& plan, Part part, ThreadEmitter& machine,
                           const std::string& name, llvm::Module& module)
    : LoopElements(body, plan,
                   {.lanes = part == Part::kRun ? static_cast<unsigned>(plan.lanes) : 1,
                    .has_gather = false,
                    .is_aligned = true},
                   {.instructions = machine.instructions(), .has_libm = false},
                   Declare(name, body.inputs().size() + body.results().size() + 2, machine,
                           part == Part::kRun ? plan.threads : GridPlan::kFinishThreads, module)),
      plan_(plan),
      part_(part),
      machine_(machine),
      number_type_(FitsInt32(plan) ? b_.getInt32Ty() : b_.getInt64Ty()),
      reduced_(plan.reductions.size()) {
  for (size_t i = 0; i < body.inputs().size() + body.results().size(); ++i)
    pointers_.push_back(function_->getArg(static_cast<unsigned>(i)));
  for (size_t r = 0; r < plan.reductions.size(); ++r) {
    accumulators_.push_back(b_.CreateAlloca(AccumulatorType(r)));
    llvm::Type* const part = VectorType(b_.getFloatTy());
    pairs_.push_back(IsInPairs(r) ? FloatPair{b_.CreateAlloca(part), b_.CreateAlloca(part)} : FloatPair{});
  }
}

llvm::Type* GridFunction::CombinedType(size_t reduction) {
  return IsInPairs(reduction) ? b_.getInt64Ty() : SumType(plan_.reductions[reduction]);
}
llvm::Type* GridFunction::AccumulatorType(size_t reduction) { return VectorType(CombinedType(reduction)); }

void GridFunction::Emit() {
  OpenThread();
  if (part_ == Part::kFinish) EmitFinish();
  else EmitRun();
  ReportError();
  b_.CreateRetVoid();
}

// --- The index of a thread -------------------------------------------------------------------------------------------

void GridFunction::OpenThread() {
  thread_ = ToNumber(machine_.Thread(b_));
  const int64_t threads = part_ == Part::kRun ? plan_.threads : GridPlan::kFinishThreads;
  const int64_t groups = threads / splits();
  const auto divide = [&](int64_t by) { return by == 1 ? thread_ : b_.CreateUDiv(thread_, Number(by)); };
  const auto rest = [&](int64_t by) { return by == 1 ? Number(0) : b_.CreateURem(thread_, Number(by)); };
  const bool rows = part_ == Part::kFinish || plan_.vector_reduced();
  group_ = rows ? divide(splits()) : rest(groups);
  split_ = rows ? rest(splits()) : divide(groups);
  kept_ = b_.CreateAdd(b_.CreateMul(ToNumber(machine_.Block(b_, 0)), Number(groups)), group_);
  chunk_ = part_ == Part::kRun && plan_.num_chunks > 1 ? ToNumber(machine_.Block(b_, 1)) : Number(0);
  const int64_t count = part_ == Part::kRun ? plan_.kept_vectors() : plan_.num_kept();
  active_ = count % groups == 0 ? b_.getTrue() : b_.CreateICmpULT(kept_, Number(count));
  SetIndices(kept_, /*reduced=*/false, part_ == Part::kRun && keeps_last() ? plan_.lanes : 1);
}

void GridFunction::SetIndices(IrValue* number, bool reduced, int64_t step) {
  size_t outermost = 0;
  while (outermost < index_.size() && plan_.reduced[outermost] != reduced) ++outermost;
  for (size_t k = index_.size(); k-- > outermost;) {
    if (plan_.reduced[k] != reduced) continue;
    const bool is_last = k + 1 == index_.size();
    const int64_t extent = is_last ? plan_.extents[k] / step : plan_.extents[k];
    IrValue* digit = k == outermost ? number : extent <= 1 ? Number(0) : b_.CreateURem(number, Number(extent));
    if (k != outermost && extent > 1) number = b_.CreateUDiv(number, Number(extent));
    if (is_last && step > 1) digit = b_.CreateMul(digit, Number(step));
    index_[k] = b_.CreateZExt(digit, b_.getInt64Ty());
  }
}

void GridFunction::If(IrValue* condition, const std::function<void()>& body) {
  if (condition == b_.getTrue()) {
    const Values outside = scalars_;
    body();
    scalars_ = outside;
    return;
  }
  auto* then = llvm::BasicBlock::Create(module_.getContext(), "then", function_);
  auto* done = llvm::BasicBlock::Create(module_.getContext(), "done", function_);
  b_.CreateCondBr(condition, then, done);
  b_.SetInsertPoint(then);
  const Values outside = scalars_;
  body();
  scalars_ = outside;
  b_.CreateBr(done);
  b_.SetInsertPoint(done);
}

// --- The computation -------------------------------------------------------------------------------------------------

void GridFunction::EmitRun() {
  for (int phase = 0; phase < plan_.num_phases; ++phase) EmitPhase(phase);
  if (plan_.reductions.empty()) return;
  if (plan_.num_chunks > 1) SaveChunk();
  else EmitEpilogue();
}

void GridFunction::EmitPhase(int phase) {
  const std::vector<bool> needed = plan_.NeededIn(phase);
  for (size_t r = 0; r < plan_.reductions.size(); ++r) {
    const Reduction& reduction = plan_.reductions[r];
    if (reduction.phase != phase) continue;
    if (IsInPairs(r)) {
      llvm::Constant* nothing = llvm::Constant::getNullValue(VectorType(b_.getFloatTy()));
      for (IrValue* part : {pairs_[r].high, pairs_[r].low}) b_.CreateStore(nothing, part);
    } else {
      b_.CreateStore(emit_.Identity(reduction.kind, reduction.sum_dtype(), AccumulatorType(r)), accumulators_[r]);
    }
  }
  If(active_, [&] {
    EmitUniforms(needed);
    if (plan_.reductions.empty()) EmitVector(phase, needed, index_.back());
    else EmitReducedVectors(phase, needed);
  });
  for (size_t r = 0; r < plan_.reductions.size(); ++r) {
    if (plan_.reductions[r].phase == phase) reduced_[r] = CombineGroup(r);
  }
}

void GridFunction::EmitReducedVectors(int phase, const std::vector<bool>& needed) {
  IrValue *low = split_, *high = Number(plan_.reduced_vectors());
  if (plan_.num_chunks > 1) {
    IrValue* begin = b_.CreateMul(chunk_, Number(plan_.chunk_length));
    low = b_.CreateAdd(begin, split_);
    high = b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, b_.CreateAdd(begin, Number(plan_.chunk_length)), high);
  }
  const auto emit = [&](IrValue* i) {
    SetIndices(i, /*reduced=*/true, plan_.vector_reduced() ? plan_.lanes : 1);
    EmitUniforms(needed);
    EmitVector(phase, needed, index_.back());
    for (size_t k = 0; k < index_.size(); ++k) {
      if (plan_.reduced[k]) index_[k] = nullptr;
    }
  };
  if (!plan_.keeps_rows()) return For(low, high, plan_.splits, emit);
  // Without a loop, LLVM merges what two phases read or compute.
  for (int64_t i = 0; i < plan_.reduced_vectors(); i += plan_.splits) {
    If(b_.getTrue(), [&] { emit(b_.CreateAdd(split_, Number(i))); });
  }
}

void GridFunction::EmitVector(int phase, const std::vector<bool>& needed, IrValue* i) {
  const Values vectors = EmitVectors(needed, i, nullptr);
  for (size_t r = 0; r < plan_.reductions.size(); ++r) {
    const Reduction& reduction = plan_.reductions[r];
    if (reduction.phase != phase) continue;
    Accumulate(r, VectorOf(reduction.operand, vectors));
  }
  // All operands have been read by now: a result may overwrite an operand.
  for (const Output& output : plan_.outputs) {
    if (!output.after_reduction && output.phase == phase)
      StoreVector(output, VectorOf(output.element, vectors), nullptr);
  }
}

void GridFunction::Accumulate(size_t r, IrValue* operand) {
  const Reduction& reduction = plan_.reductions[r];
  if (IsInPairs(r)) {
    const auto load = [&](IrValue* part) { return b_.CreateLoad(operand->getType(), part); };
    const FloatPair sum = AddToPair(b_, {load(pairs_[r].high), load(pairs_[r].low)}, operand);
    b_.CreateStore(sum.high, pairs_[r].high);
    b_.CreateStore(sum.low, pairs_[r].low);
    return;
  }
  operand = emit_.Convert(operand, reduction.dtype, reduction.sum_dtype());
  IrValue* sum = b_.CreateLoad(operand->getType(), accumulators_[r]);
  b_.CreateStore(Combine(r, sum, operand), accumulators_[r]);
}

IrValue* GridFunction::IsWriter() {
  IrValue* first = splits() == 1 ? b_.getTrue() : b_.CreateICmpEQ(split_, Number(0));
  return active_ == b_.getTrue() ? first : b_.CreateAnd(active_, first);
}

void GridFunction::EmitEpilogue() {
  const std::vector<bool> needed = plan_.NeededIn(plan_.num_phases);
  If(IsWriter(), [&] {
    EmitUniforms(needed);
    const Values vectors = keeps_last() ? EmitVectors(needed, index_.back(), nullptr) : Values();
    for (const Output& output : plan_.outputs) {
      if (!output.after_reduction) continue;
      if (keeps_last()) StoreVector(output, VectorOf(output.element, vectors), nullptr);
      else StoreScalar(output, Uniform(output.element));
    }
  });
}

// The high part of a pair is the sum, rounded to f32. The callers convert it back from the sum's dtype.
IrValue* GridFunction::ReducedScalar(size_t reduction) {
  IrValue* value = reduced_[reduction];
  if (value == nullptr || !IsInPairs(reduction)) return value;
  return emit_.Convert(UnpackPair(b_, value).high, DType::kF32, plan_.reductions[reduction].sum_dtype());
}
IrValue* GridFunction::ReducedVector(size_t reduction, IrValue*) { return ReducedScalar(reduction); }

// The first thread that finds an error reports it; which of several threads that is depends on the machine.
void GridFunction::ReportError() {
  IrValue* code = b_.CreateLoad(b_.getInt32Ty(), error_);
  If(b_.CreateICmpNE(code, b_.getInt32(kLoopOk)), [&] {
    const auto arguments = static_cast<unsigned>(function_->arg_size());
    IrValue* id = b_.CreateShl(b_.CreateZExt(function_->getArg(arguments - 1), b_.getInt64Ty()), Int(32));
    IrValue* word = b_.CreateOr(id, b_.CreateZExt(code, b_.getInt64Ty()));
    b_.CreateAtomicCmpXchg(function_->getArg(arguments - 2), Int(0), word, llvm::Align(8),
                           llvm::AtomicOrdering::Monotonic, llvm::AtomicOrdering::Monotonic);
  });
}

}  // namespace lockstep
