#include "passes/topological_order.h"

#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/op_def.h"

namespace lockstep::passes {

void ReorderTopologically(Graph& graph, const std::function<int64_t(const Node&)>& priority, bool keep_collectives) {
  using Entry = std::tuple<int64_t, int64_t, Node*>;  // priority, id
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::unordered_map<const Node*, size_t> waiting;  // the number of operands that are not computed yet
  std::unordered_map<const Node*, int64_t> priorities;
  std::unordered_map<const Node*, Node*> next_collective;
  Node* last_collective = nullptr;
  for (Node& node : graph.nodes()) {
    priorities[&node] = priority(node);
    size_t count = 0;
    for (Value operand : node.operands()) count += !operand.node->is_input();
    if (keep_collectives && node.op().has_trait(kCollective)) {
      if (last_collective) {
        next_collective[last_collective] = &node;
        ++count;
      }
      last_collective = &node;
    }
    waiting[&node] = count;
    if (count == 0) ready.emplace(priorities[&node], node.id(), &node);
  }
  size_t placed = 0;
  while (!ready.empty()) {
    Node* node = std::get<2>(ready.top());
    ready.pop();
    graph.MoveBefore(node, nullptr);
    ++placed;
    const auto release = [&](Node* waiter) {
      if (--waiting[waiter] == 0) ready.emplace(priorities[waiter], waiter->id(), waiter);
    };
    for (Node* user : node->users()) release(user);  // lists a user once for each operand, as counted above
    if (const auto next = next_collective.find(node); next != next_collective.end()) release(next->second);
  }
  LOCKSTEP_CHECK(placed == graph.nodes().size()) << "graph @" << graph.name() << " has a cycle";
}

void RepairOrder(Graph& graph, bool keep_collectives) {
  std::unordered_map<const Node*, int64_t> position;
  int64_t next = 0;
  for (const Node& node : graph.nodes()) position[&node] = next++;
  ReorderTopologically(graph, [&](const Node& node) { return position.at(&node); }, keep_collectives);
}

}  // namespace lockstep::passes
