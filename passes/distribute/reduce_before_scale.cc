#include "passes/distribute/reduce_before_scale.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/op_def.h"

namespace lockstep::passes {
namespace {

// Returns the nodes that are collectives or depend on one.
std::unordered_set<const Node*> WaitingNodes(const Graph& graph) {
  std::unordered_set<const Node*> waiting;
  for (const Node& node : graph.nodes()) {
    bool waits = node.op().collective().has_value();
    for (Value operand : node.operands()) waits = waits || waiting.contains(operand.node);
    if (waits) waiting.insert(&node);
  }
  return waiting;
}

// Returns true if a node is an all_reduce of one sum along the axis.
bool IsSum(const Node& node, const std::string& axis) {
  return node.op().collective() == CollectiveOp::kAllReduce && node.num_results() == 1 &&
         node.attr<std::string>("kind") == "sum" && node.attr<std::string>("axis") == axis;
}

// Returns the index of the operand that is scaled by the other one. Returns -1 if the node does not scale a partial sum
// by a value that is replicated along the axis, or if the scale does not depend on a collective and the unscaled value
// is not reduced anyway.
int ScaledOperand(const Node& node, const std::string& axis, const std::unordered_set<const Node*>& waiting) {
  if (!node.Is("mul") && !node.Is("div")) return -1;
  for (int i = 0; i < (node.Is("mul") ? 2 : 1); ++i) {
    const Value scaled = node.operand(i), scale = node.operand(1 - i);
    if (!scale.placement(axis).is_replicated() || !scaled.placement(axis).is_partial(ReduceKind::kSum)) continue;
    const std::vector<Node*>& users = scaled.node->users();
    const bool is_summed = std::any_of(
        users.begin(), users.end(), [&](const Node* user) { return IsSum(*user, axis) && user->operand(0) == scaled; });
    if (is_summed || waiting.contains(scale.node)) return i;
  }
  return -1;
}

// Replaces the all_reduce by one of the unscaled operand, followed by the scale.
absl::Status Swap(Graph& graph, Node& reduce, Node& scale, int scaled) {
  NodeSpec spec{&reduce.op(), {scale.operand(scaled)}, reduce.attributes(), reduce.source(), {}};
  spec.placements = {reduce.placements()};
  ASSIGN_OR_RETURN(Node* const sum, graph.Insert(std::move(spec), &reduce));
  graph.SetName(sum->result(), scale.operand(scaled).name());
  NodeSpec after{&scale.op(), scale.operands(), scale.attributes(), scale.source(), {}};
  after.operands[scaled] = sum->result();
  after.placements = {reduce.placements()};
  ASSIGN_OR_RETURN(Node* const scaled_sum, graph.Insert(std::move(after), &reduce));
  std::string name = reduce.result_name();
  graph.ReplaceUses(reduce.result(), scaled_sum->result());
  graph.Erase(&reduce);
  if (!graph.IsUsed(scale.result())) {
    name = scale.result_name();
    graph.Erase(&scale);
  }
  graph.SetName(scaled_sum->result(), name);
  return absl::OkStatus();
}

absl::StatusOr<bool> RunReduceBeforeScale(Graph& graph) {
  bool changed = false;
  // Repeats for scales of scales: the next one is found once the first was moved.
  for (bool found = true; found;) {
    found = false;
    const std::unordered_set<const Node*> waiting = WaitingNodes(graph);
    std::vector<std::pair<Node*, int>> reduces;
    for (Node& node : graph.nodes()) {
      if (node.op().collective() != CollectiveOp::kAllReduce) continue;
      const std::string& axis = node.attr<std::string>("axis");
      const int scaled = IsSum(node, axis) ? ScaledOperand(*node.operand(0).node, axis, waiting) : -1;
      if (scaled >= 0) reduces.emplace_back(&node, scaled);
    }
    for (const auto& [reduce, scaled] : reduces) {
      RETURN_IF_ERROR(Swap(graph, *reduce, *reduce->operand(0).node, scaled));
      changed = found = true;
    }
  }
  return changed;
}

}  // namespace

Pass ReduceBeforeScale() { return {"reduce-before-scale", RunReduceBeforeScale, Keeps::kMeaning, /*needs_mesh=*/true}; }

}  // namespace lockstep::passes
