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
  // Goes backwards, so that a node that only dead nodes use has no users when it is reached.
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

void RemoveDeadNodesAmong(Graph& graph, const std::vector<Node*>& nodes) {
  std::unordered_set<const Node*> gone;
  const auto is_dead = [&](Node& node) {
    if (node.is_input() || !node.users().empty()) return false;
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (graph.IsUsed(node.result(i))) return false;
    }
    return true;
  };
  for (size_t i = nodes.size(); i-- > 0;) {
    if (gone.contains(nodes[i]) || !is_dead(*nodes[i])) continue;
    std::vector<Node*> open = {nodes[i]};
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      if (!gone.insert(node).second) continue;
      const std::vector<Value> operands = node->operands();
      graph.Erase(node);
      for (Value operand : operands) {
        if (!gone.contains(operand.node) && is_dead(*operand.node)) open.push_back(operand.node);
      }
    }
  }
}

namespace {

// Repeats until nothing changes: operands that a trimmed loop no longer needs are dead, and inputs that a body no
// longer uses allow trimming.
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
