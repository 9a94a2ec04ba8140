#include "passes/stages/names.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "core/op_def.h"

namespace lockstep::passes {
namespace {

std::string NameOfResult(const Graph& step, Value value) {
  for (const Result& result : step.results()) {
    if (result.value == value) return (result.is_state ? "next state " : "result ") + result.name;
  }
  return "";
}

}  // namespace

std::string TransferName(const Graph& step, Value value) {
  if (value.node->is_input()) return "state " + value.name();
  const std::string name = NameOfResult(step, value);
  if (!name.empty()) return name;
  return value.node->source().empty() ? "%" + value.name() : value.node->source();
}

std::string ReductionName(const Graph& step, Value sum) {
  std::vector<Value> ahead = {sum};
  std::unordered_set<Value, ValueHash> seen = {sum};
  for (size_t i = 0; i < ahead.size(); ++i) {
    for (const Node* user : ahead[i].node->users()) {
      const auto& operands = user->operands();
      if (std::find(operands.begin(), operands.end(), ahead[i]) == operands.end()) continue;  // uses another result
      if (user->op().has_trait(kOptimizer)) return "gradient of " + operands[0].name();
      if (!user->op().has_trait(kElementwise) && !user->op().has_trait(kMovement)) continue;
      for (size_t k = 0; k < user->num_results(); ++k) {
        const Value next = const_cast<Node*>(user)->result(k);
        if (seen.insert(next).second) ahead.push_back(next);
      }
    }
  }
  return NameOfResult(step, sum);
}

}  // namespace lockstep::passes
