#include "passes/distribute/reduce_before_scale.h"

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/op_def.h"

namespace lockstep::passes {
namespace {

// The nodes that wait for ranks.
std::unordered_set<const Node*> WaitingNodes(const Graph& graph) {
  std::unordered_set<const Node*> waiting;
  for (const Node& node : graph.nodes()) {
    bool waits = node.op().collective().has_value();
    for (Value operand : node.operands()) waits = waits || waiting.contains(operand.node);
    if (waits) waiting.insert(&node);
  }
  return waiting;
}

// The place among the operands of what is scaled by the other; -1 if that is no scale along the axis, or is there
// already.
int ScaledOperand(const Node& node, const std::string& axis, const std::unordered_set<const Node*>& waiting) {
  const auto scales = [&](Value value) {
    return waiting.contains(value.node) && value.placement(axis).is_replicated();
  };
  if (!node.Is("mul") && !node.Is("div")) return -1;
  for (int i = 0; i < (node.Is("mul") ? 2 : 1); ++i) {
    if (scales(node.operand(1 - i)) && node.operand(i).placement(axis).is_partial(ReduceKind::kSum)) return i;
  }
  return -1;
}

// The all_reduce of the scaled operand, and after it the scale.
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

absl::StatusOr<bool> Run(Graph& graph) {
  bool changed = false;
  // A scale after another is found again, in what the first has become.
  for (bool found = true; found;) {
    found = false;
    const std::unordered_set<const Node*> waiting = WaitingNodes(graph);
    std::vector<std::pair<Node*, int>> reduces;
    for (Node& node : graph.nodes()) {
      if (node.op().collective() != CollectiveOp::kAllReduce || node.num_results() != 1) continue;
      if (node.attr<std::string>("kind") != "sum") continue;
      const int scaled = ScaledOperand(*node.operand(0).node, node.attr<std::string>("axis"), waiting);
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

Pass ReduceBeforeScale() { return {"reduce-before-scale", Run, Keeps::kMeaning, /*needs_mesh=*/true}; }

}  // namespace lockstep::passes
