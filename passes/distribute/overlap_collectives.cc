#include "passes/distribute/overlap_collectives.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "core/op_def.h"
#include "passes/topological_order.h"

namespace lockstep::passes {
namespace {

bool IsCollective(const Node& node) { return node.op().has_trait(kCollective); }

// The collectives whose results other collectives need are on the way of the computation, not after it: their consumers
// are not put off.
std::unordered_map<const Node*, bool> NeededByCollective(Graph& graph) {
  std::unordered_map<const Node*, bool> needed;
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    bool& own = needed[&*it];
    for (const Node* user : it->users()) own = own || IsCollective(*user) || needed[user];
  }
  return needed;
}

}  // namespace

Pass OverlapCollectives() {
  return {
      "overlap-collectives",
      [](Graph& graph) -> absl::StatusOr<bool> {
        const std::string before = graph.ToString();
        auto needed = NeededByCollective(graph);
        const int64_t size = static_cast<int64_t>(graph.nodes().size());

        // First by readiness: collectives as soon as their operands are there, and everything else as it stands.
        std::unordered_map<const Node*, int64_t> position;
        for (const Node& node : graph.nodes()) position.emplace(&node, static_cast<int64_t>(position.size()));
        ReorderTopologically(graph, [&](const Node& node) {
          return IsCollective(node) ? position.at(&node) - size : position.at(&node);
        });

        // Then the consumers of final collectives to the end, those of the first collective first.
        position.clear();
        std::unordered_map<const Node*, int64_t> last_final;  // the last final collective before a node, counted from 1
        int64_t finals = 0;
        for (const Node& node : graph.nodes()) {
          position.emplace(&node, static_cast<int64_t>(position.size()));
          int64_t& own = last_final[&node];
          for (Value operand : node.operands()) {
            const auto it = last_final.find(operand.node);
            if (it != last_final.end()) own = std::max(own, it->second);
          }
          if (IsCollective(node) && !needed[&node]) own = ++finals;
        }
        ReorderTopologically(graph, [&](const Node& node) {
          const bool is_consumer = !IsCollective(node) && last_final.at(&node) > 0;
          return position.at(&node) + (is_consumer ? last_final.at(&node) * size : 0);
        });
        return graph.ToString() != before;
      },
      Keeps::kEveryValue};
}

}  // namespace lockstep::passes
