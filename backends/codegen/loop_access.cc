// The part of LoopFunction that computes elements and touches memory.

#include "backends/codegen/loop_function.h"
#include "llvm/IR/Module.h"

namespace lockstep {

using IrValue = llvm::Value;

const Element& LoopFunction::ReducedElement(size_t reduction) const {
  for (const Element& element : plan_.elements) {
    if (element.kind == Element::Kind::kReduced && element.index == static_cast<int>(reduction)) return element;
  }
  LOCKSTEP_CHECK(false) << "reduction " << reduction;
  __builtin_unreachable();
}

int32_t LoopFunction::ErrorCode(const Node& node) const {
  size_t position = 0;
  for (const Node& other : body_.nodes()) {
    if (&other == &node) break;
    ++position;
  }
  return LoopDivisionByZero(position);
}

IrValue* LoopFunction::Mask(IrValue* count) {
  std::vector<llvm::Constant*> lanes;
  for (unsigned lane = 0; lane < plan_.lanes; ++lane) lanes.push_back(b_.getInt32(lane));
  return b_.CreateICmpULT(llvm::ConstantVector::get(lanes), Splat(b_.CreateTrunc(count, b_.getInt32Ty())));
}

IrValue* LoopFunction::Position(const Affine& at) {
  IrValue* position = Int(at.constant);
  for (size_t k = 0; k < index_.size(); ++k) {
    if (at.strides[k] == 0) continue;
    LOCKSTEP_CHECK(index_[k] != nullptr) << "loop dimension " << k;
    position = b_.CreateNSWAdd(position, b_.CreateNSWMul(index_[k], Int(at.strides[k])));
  }
  return position;
}

IrValue* LoopFunction::ElementPointer(IrValue* base, DType dtype, IrValue* position) {
  return b_.CreateInBoundsGEP(emit_.StoredType(dtype), base, position);
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

IrValue* LoopFunction::ConstantTable(const Element& element) {
  const Tensor& value = element.node->attr<Tensor>("value");
  const llvm::StringRef bytes(reinterpret_cast<const char*>(value.bytes()), value.num_bytes());
  llvm::Constant* data = llvm::ConstantDataArray::getString(module_.getContext(), bytes, /*AddNull=*/false);
  auto* table =
      new llvm::GlobalVariable(module_, data->getType(), /*isConstant=*/true, llvm::GlobalValue::PrivateLinkage, data);
  table->setAlignment(llvm::Align(64));
  return table;
}

IrValue* LoopFunction::Load(const Element& element, IrValue* mask) {
  const bool table = element.kind == Element::Kind::kConstant;
  IrValue* base = table ? ConstantTable(element) : pointers_[static_cast<size_t>(element.index)];
  IrValue* pointer = ElementPointer(base, element.dtype, Position(element.at));
  llvm::Type* type = emit_.StoredType(element.dtype);
  const llvm::Align align(SizeOf(element.dtype));
  const int64_t stride = element.at.strides.back();
  if (stride == 0) return emit_.FromStored(element.dtype, b_.CreateAlignedLoad(type, pointer, align));
  llvm::Type* vector = VectorType(type);
  IrValue* loaded;
  if (stride == 1) {
    if (mask) loaded = b_.CreateMaskedLoad(vector, pointer, align, mask, llvm::Constant::getNullValue(vector));
    else loaded = b_.CreateAlignedLoad(vector, pointer, align);
  } else {
    std::vector<llvm::Constant*> offsets;
    for (unsigned lane = 0; lane < plan_.lanes; ++lane)
      offsets.push_back(b_.getInt64(lane * static_cast<uint64_t>(stride)));
    IrValue* pointers = b_.CreateGEP(type, pointer, llvm::ConstantVector::get(offsets));
    if (!mask) mask = llvm::Constant::getAllOnesValue(VectorType(b_.getInt1Ty()));
    loaded = b_.CreateMaskedGather(vector, pointers, align, mask, llvm::Constant::getNullValue(vector));
  }
  return emit_.FromStored(element.dtype, loaded);
}

void LoopFunction::StoreVector(const Output& output, IrValue* vector, IrValue* mask) {
  IrValue* base = pointers_[body_.inputs().size() + static_cast<size_t>(output.result)];
  IrValue* pointer = ElementPointer(base, output.dtype, Position(output.at));
  const llvm::Align align(SizeOf(output.dtype));
  IrValue* stored = emit_.ToStored(output.dtype, vector);
  if (mask) b_.CreateMaskedStore(stored, pointer, align, mask);
  else b_.CreateAlignedStore(stored, pointer, align);
}

IrValue* LoopFunction::Uniform(int element) {
  const auto e = static_cast<size_t>(element);
  LOCKSTEP_CHECK(scalars_[e] != nullptr) << "element " << e;
  return scalars_[e];
}

void LoopFunction::EmitUniforms(const std::vector<bool>& needed) {
  for (size_t e = 0; e < plan_.elements.size(); ++e) {
    const Element& element = plan_.elements[e];
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
        if (plan_.reductions[r].phase >= reduced_known_) continue;
        IrValue* sum = plan_.vector_reduced()
                           ? reduced_[r]
                           : b_.CreateLoad(SumType(plan_.reductions[r]), AccumulatorPointer(r, low_));
        scalars_[e] = emit_.Convert(sum, SumDType(plan_.reductions[r]), element.dtype);
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

IrValue* LoopFunction::VectorOf(int element, const Values& vectors) {
  const auto e = static_cast<size_t>(element);
  return vectors[e] ? vectors[e] : Splat(Uniform(element));
}

LoopFunction::Values LoopFunction::EmitVectors(const std::vector<bool>& needed, IrValue* i, IrValue* mask) {
  index_.back() = i;
  emit_.set_active(mask);
  Values vectors(plan_.elements.size());
  for (size_t e = 0; e < plan_.elements.size(); ++e) {
    const Element& element = plan_.elements[e];
    if (!needed[e] || scalars_[e]) continue;
    switch (element.kind) {
      case Element::Kind::kLoad:
      case Element::Kind::kConstant: vectors[e] = Load(element, mask); break;
      case Element::Kind::kCount: {
        std::vector<llvm::Constant*> offsets;
        const auto stride = static_cast<uint64_t>(element.at.strides.back());
        for (unsigned lane = 0; lane < plan_.lanes; ++lane) offsets.push_back(b_.getInt64(lane * stride));
        IrValue* counts = b_.CreateAdd(Splat(Position(element.at)), llvm::ConstantVector::get(offsets));
        vectors[e] = emit_.Convert(counts, DType::kI64, element.dtype);
        break;
      }
      case Element::Kind::kReduced: {
        const auto r = static_cast<size_t>(element.index);
        IrValue* sum = b_.CreateLoad(VectorType(SumType(plan_.reductions[r])), AccumulatorPointer(r, i));
        vectors[e] = emit_.Convert(sum, SumDType(plan_.reductions[r]), element.dtype);
        break;
      }
      case Element::Kind::kOp: {
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
