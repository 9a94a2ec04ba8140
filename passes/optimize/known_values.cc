#include "passes/optimize/known_values.h"

#include <algorithm>

#include "core/op_def.h"

namespace lockstep::passes {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 22;

// Returns true if the node can be evaluated: its results are small, and its op has a reference meaning on one rank.
bool CanBeKnown(const Node& node) {
  if (node.is_input() || node.op().has_trait(kCollective) || !node.op().eval()) return false;
  for (size_t i = 0; i < node.num_results(); ++i) {
    if (node.type(i).num_elements() > kMostElements) return false;
  }
  return true;
}

}  // namespace

const Tensor* KnownValues::Find(Value value) {
  const std::vector<Tensor>& results = ResultsOf(*value.node);
  return results.empty() ? nullptr : &results[static_cast<size_t>(value.index)];
}

std::optional<double> KnownValues::FindNumber(Value value) {
  if (value.type().num_elements() == 0 || !IsFloat(value.dtype())) return std::nullopt;
  // A broadcast may be large although its operand is small.
  while (value.node->Is("broadcast")) value = value.node->operand(0);
  const Tensor* const tensor = Find(value);
  if (tensor == nullptr || !tensor->AllElementsEqual()) return std::nullopt;
  return tensor->At(0);
}

const std::vector<Tensor>& KnownValues::ResultsOf(const Node& node) {
  // Evaluates operands first, without recursion, since graphs are deep.
  std::vector<const Node*> stack = {&node};
  while (!stack.empty()) {
    const Node& next = *stack.back();
    if (results_.contains(&next)) {
      stack.pop_back();
      continue;
    }
    std::vector<Tensor>* known = nullptr;
    if (!CanBeKnown(next)) known = &results_[&next];
    bool waits = false;
    for (size_t i = 0; known == nullptr && i < next.operands().size(); ++i) {
      const auto it = results_.find(next.operand(i).node);
      if (it == results_.end()) stack.push_back(next.operand(i).node), waits = true;
      else if (it->second.empty()) known = &results_[&next];
    }
    if (known != nullptr) {
      continue;
    }
    if (waits) continue;
    std::vector<const Tensor*> operands;
    for (const Value& operand : next.operands())
      operands.push_back(&results_.at(operand.node)[static_cast<size_t>(operand.index)]);
    std::vector<Tensor> results;
    for (size_t i = 0; i < next.num_results(); ++i) results.emplace_back(next.type(i));
    EvalContext context(next.op(), next.attributes(), operands, results);
    if (!next.op().eval()(context).ok()) results.clear();
    results_[&next] = std::move(results);
  }
  return results_.at(&node);
}

}  // namespace lockstep::passes
