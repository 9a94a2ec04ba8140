#include "passes/optimize/dce.h"

#include <unordered_set>

#include "passes/bodies.h"
#include "passes/optimize/trim_loops.h"

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

namespace {

// Loops first: what they no longer need is dead then. And what is dead in a body, a loop need not take.
absl::StatusOr<bool> RemoveDead(Graph& graph) {
  bool changed = RemoveDeadNodes(graph);
  for (bool again = true; again;) {
    ASSIGN_OR_RETURN(const bool in_bodies, InBodies(graph, RemoveDead));
    ASSIGN_OR_RETURN(const bool trimmed, TrimLoops(graph));
    const bool removed = RemoveDeadNodes(graph);
    again = in_bodies || trimmed || removed;
    changed = changed || again;
  }
  return changed;
}

}  // namespace

Pass Dce() { return {"dce", RemoveDead, Keeps::kEveryValue}; }

}  // namespace lockstep::passes
