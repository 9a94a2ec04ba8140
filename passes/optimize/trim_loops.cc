#include "passes/optimize/trim_loops.h"

#include <algorithm>
#include <unordered_set>

#include "core/op_def.h"
#include "core/ops/scan.h"

namespace lockstep::passes {
namespace {

class Trimmer {
 public:
  Trimmer(Graph& graph, Node& scan)
      : graph_(graph), scan_(scan), form_(scan), body_(form_.body->Clone()), is_live_(form_.num_results()) {}

  absl::StatusOr<bool> Run() {
    FindLive();
    const auto used = static_cast<size_t>(std::count(is_live_.begin(), is_live_.end(), true));
    const bool has_fixed = std::any_of(fixed_.begin(), fixed_.end(), [](bool fixed) { return fixed; });
    if (used == 0) return ReplaceFixed();
    if (used == form_.num_results() && !has_fixed && AllInputsNeeded()) return false;
    return Replace();
  }

 private:
  Value Inner(size_t i) const { return body_.inputs()[i].value; }
  Value InnerResult(size_t i) const { return body_.results()[i].value; }

  // Which results are to stay: those that are used, and carried values that they are computed from.
  void FindLive() {
    for (size_t i = 0; i < form_.carried; ++i) fixed_.push_back(InnerResult(i) == Inner(i));
    for (size_t i = 0; i < form_.num_results(); ++i) {
      const bool fixed = i < form_.carried && fixed_[i];
      if (!fixed && graph_.IsUsed(scan_.result(i))) MarkLive(i);
    }
  }
  void MarkLive(size_t result) {
    if (is_live_[result]) return;
    is_live_[result] = true;
    Need(InnerResult(result));
  }
  void Need(Value value) {
    if (!needed_.insert(value.node).second) return;
    for (size_t i = 0; i < form_.carried; ++i) {
      if (Inner(i) == value && !fixed_[i]) MarkLive(i);
    }
    for (Value operand : value.node->operands()) Need(operand);
  }
  bool AllInputsNeeded() const {
    for (size_t i = form_.carried; i < form_.num_inputs(); ++i) {
      if (!needed_.contains(Inner(i).node)) return false;
    }
    return true;
  }

  // Values that are carried on as they are do not need the loop.
  bool ReplaceFixed() {
    bool changed = false;
    for (size_t i = 0; i < form_.carried; ++i) {
      if (!fixed_[i] || !graph_.IsUsed(scan_.result(i))) continue;
      graph_.ReplaceUses(scan_.result(i), scan_.operand(i));
      changed = true;
    }
    return changed;
  }

  absl::StatusOr<bool> Replace() {
    ReplaceFixed();
    ScanParts parts;
    for (size_t i = 0; i < form_.num_inputs(); ++i) {
      const ScanParts::Operand operand{scan_.operand(i), Inner(i)};
      if (i >= form_.carried) (form_.is_scanned(i) ? parts.scanned : parts.constants).push_back(operand);
      else if (fixed_[i]) parts.constants.push_back(operand);
      else if (is_live_[i]) parts.carried.push_back(operand);
    }
    std::vector<size_t> kept;
    std::vector<PlacementMap> placements;
    for (size_t i = 0; i < form_.num_results(); ++i) {
      if (!is_live_[i]) continue;
      kept.push_back(i);
      placements.push_back(scan_.placements(i));
      auto& group = i < form_.carried ? parts.next_carried : form_.is_stacked(i) ? parts.stacked : parts.summed;
      group.push_back(InnerResult(i));
    }
    ASSIGN_OR_RETURN(NodeSpec spec, MakeScan(body_, parts, form_.length, form_.reverse, scan_.source()));
    spec.placements = std::move(placements);
    ASSIGN_OR_RETURN(Node* const trimmed, graph_.Insert(std::move(spec), &scan_));
    std::vector<std::string> names;
    for (size_t i : kept) names.push_back(scan_.result_name(i));
    for (size_t i = 0; i < kept.size(); ++i) graph_.ReplaceUses(scan_.result(kept[i]), trimmed->result(i));
    graph_.Erase(&scan_);
    for (size_t i = 0; i < names.size(); ++i) graph_.SetName(trimmed->result(i), names[i]);
    return true;
  }

  Graph& graph_;
  Node& scan_;
  const ScanForm form_;
  Graph body_;
  std::vector<bool> is_live_;  // by result
  std::vector<bool> fixed_;    // by carried value: every iteration has the first one
  std::unordered_set<const Node*> needed_;
};

}  // namespace

absl::StatusOr<bool> TrimLoops(Graph& graph) {
  bool changed = false;
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    Node& node = *it++;
    if (!node.Is("scan")) continue;
    ASSIGN_OR_RETURN(const bool trimmed, Trimmer(graph, node).Run());
    changed = changed || trimmed;
  }
  return changed;
}

}  // namespace lockstep::passes
