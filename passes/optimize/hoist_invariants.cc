#include "passes/optimize/hoist_invariants.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "core/op_def.h"
#include "core/ops/scan_parts.h"

namespace lockstep::passes {
namespace {

class Hoister {
 public:
  Hoister(Graph& graph, Node& scan) : graph_(graph), scan_(scan), form_(scan), body_(form_.body->Clone()) {}

  absl::StatusOr<bool> Run() {
    for (size_t i = form_.first_constant(); i < form_.num_inputs(); ++i)
      outer_[body_.inputs()[i].value] = scan_.operand(i);
    std::vector<Node*> invariant;
    for (Node& node : body_.nodes()) {
      if (IsInvariant(node)) invariant.push_back(&node);
      if (IsInvariant(node) && !MayHoist(node)) made_where_read_.insert(&node);
      if (IsInvariant(node)) known_.insert(&node);
    }
    // A node that is computed where it is read is hoisted only with an invariant node that reads it.
    std::erase_if(invariant, [&](Node* node) { return made_where_read_.contains(node); });
    if (invariant.empty()) return false;
    for (Node* node : invariant) RETURN_IF_ERROR(Copy(*node));
    RETURN_IF_ERROR(Replace(invariant));
    return true;
  }

 private:
  bool IsInvariant(const Node& node) const {
    return std::all_of(node.operands().begin(), node.operands().end(),
                       [&](Value operand) { return outer_.contains(operand) || known_.contains(operand.node); });
  }
  bool MayHoist(const Node& node) const {
    const auto is_whole = [&](size_t i) { return node.type(i).num_elements() > 0; };
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (!is_whole(i)) return false;
    }
    return !node.is_constant() && !node.op().has_trait(kRematerialised) && !node.op().has_trait(kGenerator);
  }

  absl::Status Copy(Node& node) {
    if (outer_.contains(node.result())) return absl::OkStatus();
    for (Value operand : node.operands()) {
      if (!outer_.contains(operand)) RETURN_IF_ERROR(Copy(*operand.node));
    }
    return graph_.InsertCopy(node, outer_, &scan_).status();
  }

  absl::Status Replace(const std::vector<Node*>& invariant) {
    ScanParts parts;
    for (size_t i = 0; i < form_.num_inputs(); ++i)
      parts.operands_with(form_, i).push_back({scan_.operand(i), body_.inputs()[i].value});
    for (Node* node : invariant) {
      for (size_t i = 0; i < node->num_results(); ++i) {
        const Value value = node->result(i);
        const std::string name = "invariant/" + value.name() + "/" + std::to_string(body_.inputs().size());
        ASSIGN_OR_RETURN(const Value input, body_.AddInput(name, value.type(), false, value.placements()));
        body_.ReplaceUses(value, input);
        parts.constants.push_back({outer_.at(value), input});
      }
    }
    std::vector<size_t> all;
    for (size_t i = 0; i < form_.num_results(); ++i) {
      parts.results_with(form_, i).push_back(body_.results()[i].value);
      all.push_back(i);
    }
    return ReplaceScan(graph_, scan_, body_, parts, all);
  }

  Graph& graph_;
  Node& scan_;
  const ScanForm form_;
  Graph body_;
  ValueMap outer_;                                           // from values of the body to those of the graph
  std::unordered_set<const Node*> known_, made_where_read_;  // invariant nodes; those that are not hoisted alone
};

}  // namespace

absl::StatusOr<bool> HoistInvariants(Graph& graph) {
  bool changed = false;
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    Node& node = *it++;
    if (!node.op().has_trait(kLoop) || ScanForm(node).length == 0) continue;  // nodes that never run must not fail
    ASSIGN_OR_RETURN(const bool hoisted, Hoister(graph, node).Run());
    changed = changed || hoisted;
  }
  return changed;
}

}  // namespace lockstep::passes
