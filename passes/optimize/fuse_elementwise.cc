#include "passes/optimize/fuse_elementwise.h"

#include <unordered_map>
#include <unordered_set>

#include "core/op_def.h"
#include "passes/bodies.h"
#include "passes/optimize/dce.h"
#include "passes/optimize/fusion_groups.h"
#include "passes/optimize/recompute.h"
#include "passes/topological_order.h"

namespace lockstep::passes {
namespace {

using NodeSet = std::unordered_set<const Node*>;
using ValueSet = std::unordered_set<Value, ValueHash>;

// Builds the body of a group, and records the values of the graph that its inputs and results stand for.
class BodyBuilder {
 public:
  explicit BodyBuilder(const NodeSet& group) : group_(group) {}

  absl::Status Add(Node& node) {
    for (Value operand : node.operands()) RETURN_IF_ERROR(Enter(operand));
    return body_.InsertCopy(node, inner_).status();
  }
  absl::Status AddResult(Value value) {
    results_.push_back(value);
    return body_.AddResult(value.name(), inner_.at(value));
  }

  bool empty() const { return results_.empty(); }
  const std::vector<Value>& operands() const { return operands_; }
  const std::vector<Value>& results() const { return results_; }
  Graph TakeBody() { return std::move(body_); }

 private:
  // Adds a value to the body if it is not there yet: as a copy of its node, or as an input.
  absl::Status Enter(Value value) {
    if (inner_.contains(value)) return absl::OkStatus();
    if (!group_.contains(value.node) && IsRematerializable(*value.node)) return Add(*value.node);
    ASSIGN_OR_RETURN(inner_[value], body_.AddInput(value.name(), value.type(), false, value.placements()));
    operands_.push_back(value);
    return absl::OkStatus();
  }

  const NodeSet& group_;
  Graph body_{"fused"};
  ValueMap inner_;
  std::vector<Value> operands_, results_;
};

// Replaces a group by one fusion at the place of its first node. Returns false if no result of the group is used or the
// target does not support the fusion. `graph_results` are the results of the graph. The caller must restore the order
// of the graph afterwards.
absl::StatusOr<bool> Fuse(Graph& graph, const std::vector<Node*>& nodes, const ValueSet& graph_results,
                          const FusionOptions& options) {
  const NodeSet group(nodes.begin(), nodes.end());
  BodyBuilder body(group);
  for (Node* node : nodes) RETURN_IF_ERROR(body.Add(*node));
  std::vector<std::string> names;
  for (Node* node : nodes) {
    if (!IsLiveOut(node->result(), group, graph_results)) continue;
    RETURN_IF_ERROR(body.AddResult(node->result()));
    names.push_back(node->result_name(0));
  }
  if (body.empty()) return false;

  NodeSpec spec{&GetOp("fusion"), body.operands(), {}, nodes.back()->source(), {}};
  const std::vector<Value> results = body.results();
  for (Value result : results) spec.placements.push_back(result.placements());
  spec.attributes["body"] = Region(body.TakeBody());
  ASSIGN_OR_RETURN(Node * fusion, graph.Insert(std::move(spec), nodes.front()));
  if (options.supports && !options.supports(*fusion)) {
    graph.Erase(fusion);
    return false;
  }
  for (size_t i = 0; i < results.size(); ++i) graph.ReplaceUses(results[i], fusion->result(i));
  RemoveDeadNodesAmong(graph, nodes);  // the group, and nodes that were copied into its body only
  for (size_t i = 0; i < names.size(); ++i) graph.SetName(fusion->result(i), names[i]);
  return true;
}

absl::StatusOr<bool> FuseAll(Graph& graph, const FusionOptions& options) {
  // Dead nodes are removed first, so that a fusion leaves only its own nodes dead, and none of a later group.
  ASSIGN_OR_RETURN(bool changed, InBodies(graph, [&](Graph& body) { return FuseAll(body, options); }));
  changed = RemoveDeadNodes(graph) || changed;
  std::vector<std::vector<Node*>> groups = FusionGroups(graph, options);
  RETURN_IF_ERROR(RecomputeInLoops(graph, groups, options));
  ValueSet graph_results;
  for (const Result& result : graph.results()) graph_results.insert(result.value);
  for (const std::vector<Node*>& group : groups) {
    if (group.empty()) continue;
    ASSIGN_OR_RETURN(const bool fused, Fuse(graph, group, graph_results, options));
    changed = changed || fused;
  }
  if (changed) RepairOrder(graph, /*keep_collectives=*/true);
  return changed;
}

}  // namespace

Pass FuseElementwise(FusionOptions options) {
  return {"fuse-elementwise", [options](Graph& graph) { return FuseAll(graph, options); }, Keeps::kEveryValue};
}

}  // namespace lockstep::passes
