#include "passes/topological_order.h"

#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace lockstep::passes {

void ReorderTopologically(Graph& graph, const std::function<int64_t(const Node&)>& priority) {
  using Entry = std::tuple<int64_t, int64_t, Node*>;  // priority, id
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::unordered_map<const Node*, size_t> waiting;  // operands that are not computed yet
  std::unordered_map<const Node*, int64_t> priorities;
  for (Node& node : graph.nodes()) {
    priorities[&node] = priority(node);
    size_t count = 0;
    for (Value operand : node.operands()) count += !operand.node->Is("input");
    waiting[&node] = count;
    if (count == 0) ready.emplace(priorities[&node], node.id(), &node);
  }
  size_t placed = 0;
  while (!ready.empty()) {
    Node* node = std::get<2>(ready.top());
    ready.pop();
    graph.MoveBefore(node, nullptr);
    ++placed;
    for (Node* user : node->users()) {  // once for each operand, as counted
      if (--waiting[user] == 0) ready.emplace(priorities[user], user->id(), user);
    }
  }
  LOCKSTEP_CHECK(placed == graph.nodes().size()) << "graph @" << graph.name() << " has a cycle";
}

void RepairOrder(Graph& graph) {
  std::unordered_map<const Node*, int64_t> position;
  int64_t next = 0;
  for (const Node& node : graph.nodes()) position[&node] = next++;
  ReorderTopologically(graph, [&](const Node& node) { return position.at(&node); });
}

}  // namespace lockstep::passes
