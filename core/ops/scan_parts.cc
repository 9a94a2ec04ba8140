#include "core/ops/scan_parts.h"

#include <unordered_set>

#include "core/op_def.h"
#include "core/ops/op_list.h"

namespace lockstep {
namespace {

// Copies the nodes of a body that its results need.
class BodyCopy {
 public:
  BodyCopy(const Graph& from, const ScanParts& parts) : from_(from), to_(from.name()), parts_(parts) {
    for (const auto* group : {&parts_.next_carried, &parts_.stacked, &parts_.summed}) {
      for (Value value : *group) Need(value);
    }
  }
  bool IsNeeded(Value input) const { return needed_.contains(input.node); }

  absl::StatusOr<Graph> Run() {
    for (const auto* group : {&parts_.carried, &parts_.scanned, &parts_.constants}) {
      for (const ScanParts::Operand& operand : *group) {
        const Value inner = operand.inner;
        if (group != &parts_.carried && !IsNeeded(inner)) continue;
        ASSIGN_OR_RETURN(map_[inner], to_.AddInput(inner.name(), inner.type(), false, inner.placements()));
      }
    }
    for (const Node& node : from_.nodes()) {
      if (needed_.contains(&node)) RETURN_IF_ERROR(to_.InsertCopy(node, map_).status());
    }
    for (const auto* group : {&parts_.next_carried, &parts_.stacked, &parts_.summed}) {
      for (Value value : *group) RETURN_IF_ERROR(AddResult(map_.at(value)));
    }
    return std::move(to_);
  }

 private:
  void Need(Value value) {
    std::vector<const Node*> open = {value.node};
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      if (!needed_.insert(node).second) continue;
      for (Value operand : node->operands()) open.push_back(operand.node);
    }
  }
  // One value may be several results, and each needs its own name.
  absl::Status AddResult(Value value) {
    std::string name = value.name();
    for (int i = 1; to_.FindResult(name) != nullptr; ++i) name = value.name() + "." + std::to_string(i);
    return to_.AddResult(name, value, value.placements());
  }

  const Graph& from_;
  Graph to_;
  const ScanParts& parts_;
  std::unordered_set<const Node*> needed_;
  ValueMap map_;
};

}  // namespace

absl::StatusOr<NodeSpec> MakeScan(const Graph& body, const ScanParts& parts, int64_t length, bool reverse,
                                  std::string source) {
  BodyCopy copy(body, parts);
  NodeSpec spec{&ScanOp(), {}, {}, std::move(source), {}};
  int64_t scanned = 0;
  for (const auto* group : {&parts.carried, &parts.scanned, &parts.constants}) {
    for (const ScanParts::Operand& operand : *group) {
      if (group != &parts.carried && !copy.IsNeeded(operand.inner)) continue;
      spec.operands.push_back(operand.outer);
      scanned += group == &parts.scanned;
    }
  }
  const auto name = [&](const std::vector<std::string>& names, size_t count) {
    for (size_t i = 0; i < count; ++i) spec.names.push_back(i < names.size() ? names[i] : "");
  };
  name(parts.carried_names, parts.next_carried.size());
  name(parts.stacked_names, parts.stacked.size());
  name(parts.summed_names, parts.summed.size());
  ASSIGN_OR_RETURN(Graph copied, copy.Run());
  spec.attributes = {{"body", Region(std::move(copied))},
                     {"carried", static_cast<int64_t>(parts.carried.size())},
                     {"scanned", scanned},
                     {"summed", static_cast<int64_t>(parts.summed.size())},
                     {"length", length},
                     {"reverse", reverse}};
  return spec;
}

absl::Status ReplaceScan(Graph& graph, Node& scan, const Graph& body, const ScanParts& parts,
                         const std::vector<size_t>& kept) {
  const ScanForm form(scan);
  ASSIGN_OR_RETURN(NodeSpec spec, MakeScan(body, parts, form.length, form.reverse, scan.source()));
  spec.attributes.emplace("one_at_a_time", scan.attr<bool>("one_at_a_time"));
  std::vector<std::string> names;
  for (size_t i : kept) {
    spec.placements.push_back(scan.placements(i));
    names.push_back(scan.result_name(i));
  }
  ASSIGN_OR_RETURN(Node* const made, graph.Insert(std::move(spec), &scan));
  for (size_t i = 0; i < kept.size(); ++i) graph.ReplaceUses(scan.result(kept[i]), made->result(i));
  graph.Erase(&scan);
  for (size_t i = 0; i < names.size(); ++i) graph.SetName(made->result(i), names[i]);
  return absl::OkStatus();
}

}  // namespace lockstep
