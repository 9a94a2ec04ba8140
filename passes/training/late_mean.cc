#include "passes/training/late_mean.h"

#include <algorithm>
#include <unordered_set>

#include "core/builder.h"
#include "passes/formula.h"

namespace lockstep::passes {
namespace {

// Returns the inputs that a value depends on.
std::unordered_set<const Node*> InputsOf(Value value) {
  std::unordered_set<const Node*> seen, inputs;
  std::vector<const Node*> open = {value.node};
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    if (node->is_input()) inputs.insert(node);
    for (Value operand : node->operands()) open.push_back(operand.node);
  }
  return inputs;
}

}  // namespace

std::optional<LossQuotient> LossQuotientOf(Value loss, const std::vector<Value>& states) {
  const Node* node = loss.node;
  while (node->Is("convert") && IsFloat(node->operand(0).dtype())) node = node->operand(0).node;
  if (!node->Is("div") || node->type().shape.rank() > 0) return std::nullopt;
  const LossQuotient quotient{node->operand(0), node->operand(1)};
  const std::unordered_set<const Node*> inputs = InputsOf(quotient.count);
  const auto counts = [&](Value state) { return inputs.contains(state.node); };
  if (inputs.empty() || std::any_of(states.begin(), states.end(), counts)) return std::nullopt;
  return quotient;
}

absl::Status DivideByCount(Graph& graph, Value count, std::vector<Value>& gradients) {
  Builder b(graph, nullptr, "loss");
  // If the count is 0, the gradients of the sum are 0, and stay 0.
  const Formula n(b, count);
  const Value divisor = Where(n == 0, 1, n).value();
  for (Value& gradient : gradients) {
    if (!gradient) continue;
    gradient = b.Div(gradient, b.Broadcast(b.Convert(divisor, gradient.dtype()), gradient.shape(), {}));
  }
  return b.status();
}

}  // namespace lockstep::passes
