#include "passes/simplify/rule.h"

#include <algorithm>
#include <cmath>

#include "core/op_def.h"

namespace lockstep::passes {

const std::vector<SimplifyRule>& SimplifyRules() {
  static const std::vector<SimplifyRule> rules = [] {
    std::vector<SimplifyRule> all;
    for (const auto& table : {ArithmeticRules(), LogicRules(), ShapeRules(), BroadcastRules(), ReductionRules()}) {
      all.insert(all.end(), table.begin(), table.end());
    }
    return all;
  }();
  return rules;
}

Node* MadeBy(Value value, std::string_view op) { return value.node->Is(op) ? value.node : nullptr; }

const Tensor* ConstantOf(Value value) {
  const Node* constant = MadeBy(value, "constant");
  return constant ? &constant->attr<Tensor>("value") : nullptr;
}

std::optional<Tensor> SplatOf(Value value) {
  while (Node* broadcast = MadeBy(value, "broadcast")) value = broadcast->operand(0);
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
  while (Node* broadcast = MadeBy(value, "broadcast")) value = broadcast->operand(0);
  return ConstantOf(value) != nullptr;
}

bool IsPowerOfTwo(double x) {
  int exponent = 0;
  return std::isfinite(x) && std::abs(std::frexp(x, &exponent)) == 0.5;
}

bool HasOneUse(const Graph& graph, Value value) {
  if (value.node->users().size() != 1) return false;
  for (const Result& result : graph.results()) {
    if (result.value == value) return false;
  }
  return true;
}

Value Splat(Builder& b, const Tensor& scalar, const Shape& shape) { return b.Broadcast(b.Constant(scalar), shape, {}); }

}  // namespace lockstep::passes
