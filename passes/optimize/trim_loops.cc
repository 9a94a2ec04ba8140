#include "passes/optimize/trim_loops.h"

#include <algorithm>
#include <unordered_set>

#include "core/op_def.h"
#include "core/ops/scan_parts.h"

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
    RETURN_IF_ERROR(Replace());
    return true;
  }

 private:
  Value Inner(size_t i) const { return body_.inputs()[i].value; }
  Value InnerResult(size_t i) const { return body_.results()[i].value; }

  // Marks the results that stay: used ones, and carried values that these are computed from.
  void FindLive() {
    for (size_t i = 0; i < form_.carried; ++i) fixed_.push_back(InnerResult(i) == Inner(i));
    for (size_t i = 0; i < form_.num_results(); ++i) {
      const bool fixed = i < form_.carried && fixed_[i];
      if (!fixed && graph_.IsUsed(scan_.result(i))) MarkLive(i);
    }
  }
  void MarkLive(size_t result) {
    std::vector<Value> open = {InnerResult(result)};
    is_live_[result] = true;
    while (!open.empty()) {
      const Value value = open.back();
      open.pop_back();
      if (!needed_.insert(value.node).second) continue;
      for (size_t i = 0; i < form_.carried; ++i) {
        if (Inner(i) != value || fixed_[i] || is_live_[i]) continue;
        is_live_[i] = true;
        open.push_back(InnerResult(i));
      }
      open.insert(open.end(), value.node->operands().begin(), value.node->operands().end());
    }
  }
  bool AllInputsNeeded() const {
    for (size_t i = form_.carried; i < form_.num_inputs(); ++i) {
      if (!needed_.contains(Inner(i).node)) return false;
    }
    return true;
  }

  // Replaces results of carried values that do not change by their operands.
  bool ReplaceFixed() {
    bool changed = false;
    for (size_t i = 0; i < form_.carried; ++i) {
      if (!fixed_[i] || !graph_.IsUsed(scan_.result(i))) continue;
      graph_.ReplaceUses(scan_.result(i), scan_.operand(i));
      changed = true;
    }
    return changed;
  }

  absl::Status Replace() {
    ReplaceFixed();
    ScanParts parts;
    for (size_t i = 0; i < form_.num_inputs(); ++i) {
      if (i < form_.carried && !fixed_[i] && !is_live_[i]) continue;
      const bool is_fixed = i < form_.carried && fixed_[i];
      (is_fixed ? parts.constants : parts.operands_with(form_, i)).push_back({scan_.operand(i), Inner(i)});
    }
    std::vector<size_t> kept;
    for (size_t i = 0; i < form_.num_results(); ++i) {
      if (!is_live_[i]) continue;
      kept.push_back(i);
      parts.results_with(form_, i).push_back(InnerResult(i));
    }
    return ReplaceScan(graph_, scan_, body_, parts, kept);
  }

  Graph& graph_;
  Node& scan_;
  const ScanForm form_;
  Graph body_;
  std::vector<bool> is_live_;  // by result
  std::vector<bool> fixed_;    // by carried value: true if it does not change
  std::unordered_set<const Node*> needed_;
};

}  // namespace

absl::StatusOr<bool> TrimLoops(Graph& graph) {
  bool changed = false;
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    Node& node = *it++;
    if (!node.op().has_trait(kLoop)) continue;
    ASSIGN_OR_RETURN(const bool trimmed, Trimmer(graph, node).Run());
    changed = changed || trimmed;
  }
  return changed;
}

}  // namespace lockstep::passes
