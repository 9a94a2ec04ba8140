#include "passes/simplify/constants.h"

#include <algorithm>
#include <cmath>

#include "core/ops/op_list.h"

namespace lockstep::passes {

Node* MadeBy(Value value, const OpDef& op) { return &value.node->op() == &op ? value.node : nullptr; }

const Tensor* ConstantOf(Value value) {
  const Node* constant = MadeBy(value, ConstantOp());
  return constant ? &constant->attr<Tensor>("value") : nullptr;
}

std::optional<Tensor> SplatOf(Value value) {
  while (Node* broadcast = MadeBy(value, BroadcastOp())) value = broadcast->operand(0);
  const Tensor* tensor = ConstantOf(value);
  if (!tensor || tensor->num_elements() == 0 || !tensor->AllElementsEqual()) return std::nullopt;
  Tensor scalar(TensorType{tensor->dtype(), Shape()});
  std::copy_n(tensor->bytes(), SizeOf(tensor->dtype()), scalar.mutable_bytes());
  return scalar;
}

bool IsSplat(Value value, double number) {
  const std::optional<Tensor> scalar = SplatOf(value);
  if (!scalar) return false;
  const double found = scalar->At(0);
  return found == number && std::signbit(found) == std::signbit(number);
}

bool IsConstant(Value value) {
  while (Node* broadcast = MadeBy(value, BroadcastOp())) value = broadcast->operand(0);
  return ConstantOf(value) != nullptr;
}

bool HasOneUse(const Graph& graph, Value value) {
  if (value.node->users().size() != 1) return false;
  return std::none_of(graph.results().begin(), graph.results().end(),
                      [&](const Result& result) { return result.value == value; });
}

Value Splat(Builder& b, const Tensor& scalar, const Shape& shape) { return b.Broadcast(b.Constant(scalar), shape, {}); }

}  // namespace lockstep::passes
