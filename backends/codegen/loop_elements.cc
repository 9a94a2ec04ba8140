#include "backends/codegen/loop_elements.h"

#include <cmath>

#include "llvm/IR/Module.h"

namespace lockstep {

using IrValue = llvm::Value;

LoopElements::LoopElements(const Graph& body, const LoopNest& nest, const Access& access, const EmitTarget& target,
                           llvm::Function* function)
    : body_(body),
      module_(*function->getParent()),
      b_(function->getContext()),
      function_(function),
      error_([&] {
        b_.SetInsertPoint(llvm::BasicBlock::Create(function->getContext(), "entry", function));
        IrValue* error = b_.CreateAlloca(b_.getInt32Ty());
        b_.CreateStore(b_.getInt32(kLoopOk), error);
        return error;
      }()),
      emit_(b_, target.instructions, error_),
      index_(nest.extents.size()),
      scalars_(nest.elements.size()),
      nest_(nest),
      access_(access) {}

void LoopElements::For(IrValue* low, IrValue* high, int64_t step, const std::function<void(IrValue*)>& body) {
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
  llvm::PHINode* i = b_.CreatePHI(low->getType(), 2);
  i->addIncoming(low, before);
  const Values outside = scalars_;  // values computed in the loop are not known after it
  body(i);
  scalars_ = outside;
  IrValue* next = b_.CreateNSWAdd(i, llvm::ConstantInt::getSigned(low->getType(), step));
  i->addIncoming(next, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(next, high), loop, done);
  b_.SetInsertPoint(done);
}

const Element& LoopElements::ReducedElement(size_t reduction) const {
  for (const Element& element : nest_.elements) {
    if (element.kind == Element::Kind::kReduced && element.index == static_cast<int>(reduction)) return element;
  }
  LOCKSTEP_CHECK(false) << "reduction " << reduction;
  __builtin_unreachable();
}

int32_t LoopElements::ErrorCode(const Node& node) const {
  size_t position = 0;
  for (const Node& other : body_.nodes()) {
    if (&other == &node) break;
    ++position;
  }
  return LoopRefusal(position);
}

IrValue* LoopElements::Position(const Affine& at) {
  IrValue* position = Int(at.constant);
  for (size_t k = 0; k < index_.size(); ++k) {
    if (at.strides[k] == 0) continue;
    LOCKSTEP_CHECK(index_[k] != nullptr) << "loop dimension " << k;
    position = b_.CreateNSWAdd(position, b_.CreateNSWMul(index_[k], Int(at.strides[k])));
  }
  return position;
}

IrValue* LoopElements::ElementPointer(IrValue* base, DType dtype, IrValue* position) {
  return b_.CreateInBoundsGEP(emit_.StoredType(dtype), base, position);
}

IrValue* LoopElements::ConstantTable(const Element& element) {
  const Tensor& value = element.node->attr<Tensor>("value");
  const llvm::StringRef bytes(reinterpret_cast<const char*>(value.bytes()), value.num_bytes());
  llvm::Constant* data = llvm::ConstantDataArray::getString(module_.getContext(), bytes, /*AddNull=*/false);
  auto* table =
      new llvm::GlobalVariable(module_, data->getType(), /*isConstant=*/true, llvm::GlobalValue::PrivateLinkage, data);
  table->setAlignment(llvm::Align(64));
  return table;
}

IrValue* LoopElements::Load(const Element& element, IrValue* mask) {
  const bool table = element.kind == Element::Kind::kConstant;
  IrValue* base = table ? ConstantTable(element) : pointers_[static_cast<size_t>(element.index)];
  IrValue* pointer = ElementPointer(base, element.dtype, Position(element.at));
  llvm::Type* type = emit_.StoredType(element.dtype);
  const int64_t stride = element.at.strides.back();
  if (stride == 0 || access_.lanes == 1)
    return emit_.FromStored(element.dtype, b_.CreateAlignedLoad(type, pointer, llvm::Align(SizeOf(element.dtype))));
  if (stride != 1) return emit_.FromStored(element.dtype, LoadApart(type, pointer, element, mask));
  llvm::Type* vector = VectorType(type);
  const int64_t elements =
      (table ? element.node->type() : body_.inputs()[static_cast<size_t>(element.index)].value.type()).num_elements();
  const llvm::Align align = AlignmentOf(element.at, element.dtype, elements);
  IrValue* loaded;
  if (mask) loaded = b_.CreateMaskedLoad(vector, pointer, align, mask, llvm::Constant::getNullValue(vector));
  else loaded = b_.CreateAlignedLoad(vector, pointer, align);
  return emit_.FromStored(element.dtype, loaded);
}

IrValue* LoopElements::LoadApart(llvm::Type* type, IrValue* pointer, const Element& element, IrValue* mask) {
  const auto stride = static_cast<uint64_t>(element.at.strides.back());
  const llvm::Align align(SizeOf(element.dtype));
  llvm::Type* vector = VectorType(type);
  if (access_.has_gather) {
    std::vector<llvm::Constant*> offsets;
    for (unsigned lane = 0; lane < access_.lanes; ++lane) offsets.push_back(b_.getInt64(lane * stride));
    IrValue* pointers = b_.CreateGEP(type, pointer, llvm::ConstantVector::get(offsets));
    if (!mask) mask = llvm::Constant::getAllOnesValue(VectorType(b_.getInt1Ty()));
    return b_.CreateMaskedGather(vector, pointers, align, mask, llvm::Constant::getNullValue(vector));
  }
  LOCKSTEP_CHECK(mask == nullptr) << "a part of a vector";
  IrValue* loaded = llvm::PoisonValue::get(vector);
  for (unsigned lane = 0; lane < access_.lanes; ++lane) {
    IrValue* at = b_.CreateGEP(type, pointer, b_.getInt64(lane * stride));
    loaded = b_.CreateInsertElement(loaded, b_.CreateAlignedLoad(type, at, align), uint64_t{lane});
  }
  return loaded;
}

llvm::Align LoopElements::AlignmentOf(const Affine& at, DType dtype, int64_t elements) const {
  const auto lanes = static_cast<int64_t>(access_.lanes);
  bool whole = access_.is_aligned && at.constant % lanes == 0 && elements % lanes == 0;
  for (size_t k = 0; k + 1 < at.strides.size(); ++k) whole = whole && at.strides[k] % lanes == 0;
  return llvm::Align(SizeOf(dtype) * (whole ? access_.lanes : 1));
}

void LoopElements::StoreVector(const Output& output, IrValue* vector, IrValue* mask) {
  IrValue* base = pointers_[body_.inputs().size() + static_cast<size_t>(output.result)];
  IrValue* pointer = ElementPointer(base, output.dtype, Position(output.at));
  const int64_t elements = body_.results()[static_cast<size_t>(output.result)].value.type().num_elements();
  const llvm::Align align = AlignmentOf(output.at, output.dtype, elements);
  IrValue* stored = emit_.ToStored(output.dtype, vector);
  if (mask) b_.CreateMaskedStore(stored, pointer, align, mask);
  else b_.CreateAlignedStore(stored, pointer, align);
}

void LoopElements::StoreScalar(const Output& output, IrValue* scalar) {
  IrValue* base = pointers_[body_.inputs().size() + static_cast<size_t>(output.result)];
  IrValue* pointer = ElementPointer(base, output.dtype, Position(output.at));
  b_.CreateAlignedStore(emit_.ToStored(output.dtype, scalar), pointer, llvm::Align(SizeOf(output.dtype)));
}

IrValue* LoopElements::Uniform(int element) {
  const auto e = static_cast<size_t>(element);
  LOCKSTEP_CHECK(scalars_[e] != nullptr) << "element " << e;
  return scalars_[e];
}

void LoopElements::EmitUniforms(const std::vector<bool>& needed) {
  for (size_t e = 0; e < nest_.elements.size(); ++e) {
    const Element& element = nest_.elements[e];
    if (!needed[e] || scalars_[e]) continue;
    bool known = true;
    for (size_t k = 0; k < index_.size(); ++k) known = known && !(element.depends[k] && index_[k] == nullptr);
    if (!known || element.depends.back()) continue;
    switch (element.kind) {
      case Element::Kind::kLoad:
      case Element::Kind::kConstant: scalars_[e] = Load(element, nullptr); break;
      case Element::Kind::kCount: scalars_[e] = emit_.Convert(Position(element.at), DType::kI64, element.dtype); break;
      case Element::Kind::kReduced: {
        const auto r = static_cast<size_t>(element.index);
        IrValue* sum = ReducedScalar(r);
        if (sum) scalars_[e] = emit_.Convert(sum, nest_.reductions[r].sum_dtype(), element.dtype);
        break;
      }
      case Element::Kind::kOp: {
        Values arguments;
        for (int argument : element.arguments) arguments.push_back(Uniform(argument));
        scalars_[e] = emit_.EmitOp(*element.node, arguments, ErrorCode(*element.node));
        break;
      }
    }
  }
}

IrValue* LoopElements::VectorOf(int element, const Values& vectors) {
  const auto e = static_cast<size_t>(element);
  return vectors[e] ? vectors[e] : Splat(Uniform(element));
}

IrValue* LoopElements::QuotientByOne(const Element& element, const Values& vectors) {
  if (!element.node->Is("div")) return nullptr;
  const auto by = static_cast<size_t>(element.arguments[1]);
  IrValue *dividend = vectors[static_cast<size_t>(element.arguments[0])], *divisor = scalars_[by];
  // A thread computes one quotient by this divisor if it has neither several lanes nor a loop over a row.
  const bool is_shared = access_.lanes > 1 || nest_.reduced.back();
  if (!dividend || !divisor || !is_shared || !emit_.DividesByOne(divisor)) return nullptr;
  // LLVM multiplies by the inverse of a power of two.
  int exponent = 0;
  const bool is_constant = nest_.elements[by].kind == Element::Kind::kConstant;
  if (is_constant && std::abs(std::frexp(nest_.elements[by].node->attr<Tensor>("value").At(0), &exponent)) == 0.5)
    return nullptr;
  return emit_.math().DivideByOne(dividend, divisor);
}

LoopElements::Values LoopElements::EmitVectors(const std::vector<bool>& needed, IrValue* i, IrValue* mask) {
  index_.back() = i;
  emit_.set_active(mask);
  Values vectors(nest_.elements.size());
  for (size_t e = 0; e < nest_.elements.size(); ++e) {
    const Element& element = nest_.elements[e];
    if (!needed[e] || scalars_[e]) continue;
    switch (element.kind) {
      case Element::Kind::kLoad:
      case Element::Kind::kConstant: vectors[e] = Load(element, mask); break;
      case Element::Kind::kCount: {
        std::vector<llvm::Constant*> offsets;
        const auto stride = static_cast<uint64_t>(element.at.strides.back());
        for (unsigned lane = 0; lane < access_.lanes; ++lane) offsets.push_back(b_.getInt64(lane * stride));
        IrValue* counts = Splat(Position(element.at));
        if (access_.lanes > 1) counts = b_.CreateAdd(counts, llvm::ConstantVector::get(offsets));
        vectors[e] = emit_.Convert(counts, DType::kI64, element.dtype);
        break;
      }
      case Element::Kind::kReduced: {
        const auto r = static_cast<size_t>(element.index);
        vectors[e] = emit_.Convert(ReducedVector(r, i), nest_.reductions[r].sum_dtype(), element.dtype);
        break;
      }
      case Element::Kind::kOp: {
        if (IrValue* quotient = QuotientByOne(element, vectors)) {
          vectors[e] = quotient;
          break;
        }
        Values arguments;
        for (int argument : element.arguments) arguments.push_back(VectorOf(argument, vectors));
        vectors[e] = emit_.EmitOp(*element.node, arguments, ErrorCode(*element.node));
        break;
      }
    }
  }
  return vectors;
}

}  // namespace lockstep
