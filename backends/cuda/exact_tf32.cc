#include "backends/cuda/exact_tf32.h"

#include <algorithm>

#include "core/attributes.h"
#include "core/dtype.h"
#include "core/op_def.h"

namespace lockstep::cuda {
namespace {

// `fusion` is the node in whose body the value is, or null.
bool Was16Bits(Value value, const Node* fusion) {
  const Node& node = *value.node;
  if (node.is_input() && fusion != nullptr) {
    const std::vector<Input>& inputs = fusion->attr<Region>("body").graph().inputs();
    const auto input = std::find_if(inputs.begin(), inputs.end(), [&](const Input& one) { return one.value == value; });
    return Was16Bits(fusion->operand(static_cast<size_t>(input - inputs.begin())), nullptr);
  }
  if (node.Is("convert")) return IsFloat(node.operand(0).dtype()) && SizeOf(node.operand(0).dtype()) == 2;
  if (node.Is("fusion"))
    return Was16Bits(node.attr<Region>("body").graph().results()[static_cast<size_t>(value.index)].value, &node);
  return node.op().has_trait(kMovement) && node.operands().size() == 1 && Was16Bits(node.operand(0), fusion);
}

}  // namespace

bool IsExactInTf32(const Node& product) {
  const auto operands = product.operands();
  return product.operand(0).dtype() == DType::kF32 &&
         std::all_of(operands.begin(), operands.end(), [](Value value) { return Was16Bits(value, nullptr); });
}

}  // namespace lockstep::cuda
