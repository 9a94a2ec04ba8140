#include "passes/optimize/dce.h"

#include <unordered_set>

namespace lockstep::passes {

bool RemoveDeadNodes(Graph& graph) {
  std::unordered_set<Value, ValueHash> results;
  for (const Result& result : graph.results()) results.insert(result.value);
  const auto is_result = [&](Node& node) {
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (results.contains(node.result(i))) return true;
    }
    return false;
  };
  // Backwards, so that what only dead nodes use is dead by the time that it is reached.
  bool changed = false;
  for (auto it = graph.nodes().end(); it != graph.nodes().begin();) {
    Node& node = *--it;
    if (!node.users().empty() || is_result(node)) continue;
    ++it;  // erasing a node leaves the iterators of all others valid
    graph.Erase(&node);
    changed = true;
  }
  return changed;
}

Pass Dce() {
  return {"dce", [](Graph& graph) -> absl::StatusOr<bool> { return RemoveDeadNodes(graph); }, Keeps::kEveryValue};
}

}  // namespace lockstep::passes
