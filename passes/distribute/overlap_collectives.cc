#include "passes/distribute/overlap_collectives.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "core/op_def.h"
#include "passes/places.h"
#include "passes/topological_order.h"

namespace lockstep::passes {
namespace {

bool IsCollective(const Node& node) { return node.op().has_trait(kCollective); }

bool IsForOneRank(const Node& node) {
  return node.op().collective() == CollectiveOp::kPermute && !RanksOf(node.placements()).empty();
}

// Returns, for each node, true if a collective depends on it or if it is a transfer to one rank. The consumers of such
// a collective are not delayed.
std::unordered_map<const Node*, bool> NeededByCollective(Graph& graph) {
  std::unordered_map<const Node*, bool> needed;
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    bool& own = needed[&*it];
    own = IsForOneRank(*it);
    for (const Node* user : it->users()) own = own || IsCollective(*user) || needed[user];
  }
  return needed;
}

std::unordered_map<const Node*, int64_t> PositionsIn(const Graph& graph) {
  std::unordered_map<const Node*, int64_t> position;
  for (const Node& node : graph.nodes()) position.emplace(&node, static_cast<int64_t>(position.size()));
  return position;
}

// Moves each collective to where its operands are computed; all other nodes keep their order.
void StartEarly(Graph& graph) {
  const auto position = PositionsIn(graph);
  const int64_t size = static_cast<int64_t>(position.size());
  ReorderTopologically(
      graph, [&](const Node& node) { return IsCollective(node) ? position.at(&node) - size : position.at(&node); });
}

// Moves the consumers of final collectives to the end, those of the first collective first. A collective is final if
// NeededByCollective is false for it.
void UseLate(Graph& graph) {
  const auto position = PositionsIn(graph);
  const int64_t size = static_cast<int64_t>(position.size());
  auto needed = NeededByCollective(graph);
  std::unordered_map<const Node*, int64_t> last_final;  // the last final collective that a node needs, from 1; 0: none
  int64_t finals = 0;
  for (const Node& node : graph.nodes()) {
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
}

bool Overlap(Graph& graph) {
  const std::string before = graph.ToString();
  StartEarly(graph);
  UseLate(graph);
  return graph.ToString() != before;
}

}  // namespace

Pass OverlapCollectives() {
  return {"overlap-collectives", [](Graph& graph) -> absl::StatusOr<bool> { return Overlap(graph); },
          Keeps::kEveryValue, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
