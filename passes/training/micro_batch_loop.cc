#include "passes/training/micro_batch_loop.h"

#include <algorithm>
#include <utility>

#include "core/local_types.h"
#include "core/op_def.h"

namespace lockstep::passes {
namespace {

// Returns true if `node`, which computes a whole value, is copied into a body: it is cheap to compute where it is read.
bool IsCopied(const Node& node) {
  const bool is_small = node.is_constant() && node.type().num_elements() == 1;
  return is_small || node.op().has_trait(kRematerialised);
}

// Returns a copy of a placed body without placements, at any depth, for the one-rank program.
absl::StatusOr<Graph> WithoutPlacements(const Graph& from) {
  Graph to(from.name());
  ValueMap map;
  for (const Input& input : from.inputs()) {
    ASSIGN_OR_RETURN(map[input.value], to.AddInputLike(input, input.value.type(), {}));
  }
  for (const Node& node : from.nodes()) {
    NodeSpec spec = CopyOf(node, map);
    spec.placements.clear();
    for (auto& [name, value] : spec.attributes) {
      const auto* const region = std::get_if<Region>(&value);
      if (region == nullptr) continue;
      ASSIGN_OR_RETURN(Graph body, WithoutPlacements(region->graph()));
      value = Region(std::move(body));
    }
    ASSIGN_OR_RETURN(Node* const copy, to.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) map[const_cast<Node&>(node).result(i)] = copy->result(i);
  }
  for (const Result& result : from.results()) RETURN_IF_ERROR(to.AddResult(result.name, map.at(result.value)));
  return to;
}

void AddOnce(std::vector<Value>& values, Value value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

}  // namespace

MicroBatchLoop::MicroBatchLoop(const Graph& placed, const MicroBatchPlan& plan)
    : placed_(placed), plan_(plan), body_("micro_batch") {
  body_.set_mesh(placed.mesh());
}

void MicroBatchLoop::AddStacked(Value value) { AddOnce(stacked_, value); }
void MicroBatchLoop::AddSummed(Value value) { AddOnce(summed_, value); }

absl::StatusOr<ValueMap> MicroBatchLoop::Insert(Builder& b, const ValueMap& outer, const BatchCut& cut) {
  for (const auto* group : {&stacked_, &summed_}) {
    for (Value value : *group) Need(value);
  }
  std::vector<Value> operands;
  for (Value slice : slices_) {
    const auto whole = outer.find(plan_.WholeOf(slice));
    if (whole == outer.end()) {
      return InvalidArgument() << "accumulate: a micro-batch needs its part of %" << plan_.WholeOf(slice).name()
                               << ", which is known only when all micro-batches are computed";
    }
    operands.push_back(cut.Cut(b, whole->second, slice.placement(MicroBatchAxis()).dim()));
    ASSIGN_OR_RETURN(map_[slice], body_.AddInput(slice.name(), slice.type(), false, slice.placements()));
  }
  for (Value whole : wholes_) {
    operands.push_back(outer.at(whole));
    ASSIGN_OR_RETURN(map_[whole], body_.AddInput(whole.name(), whole.type()));
  }
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(Graph body, Body());
  return InsertNode(b, std::move(operands), std::move(body), cut.micro_batches);
}

// Finds the nodes, slices and whole values that a value of the body is computed from.
void MicroBatchLoop::Need(Value value) {
  std::vector<Value> open = {value};
  while (!open.empty()) {
    const Value next = open.back();
    open.pop_back();
    if (!seen_.insert(next).second) continue;
    if (plan_.WholeOf(next)) {
      AddOnce(slices_, next);
    } else if (plan_.IsWhole(next) &&
               (next.node->is_input() || MicroBatchPlan::IsCrossing(*next.node) || !IsCopied(*next.node))) {
      AddOnce(wholes_, next);
    } else {
      nodes_.insert(next.node);
      for (Value operand : next.node->operands()) open.push_back(operand);
    }
  }
}

absl::StatusOr<Graph> MicroBatchLoop::Body() {
  for (const Node& node : placed_.nodes()) {
    if (nodes_.contains(&node)) RETURN_IF_ERROR(body_.InsertCopy(node, map_).status());
  }
  for (const auto* group : {&stacked_, &summed_}) {
    for (Value value : *group) RETURN_IF_ERROR(body_.AddResult(value.name(), map_.at(value), value.placements()));
  }
  const absl::StatusOr<Graph> local = ToLocalTypes(body_);
  if (!local.ok()) return Annotate(local.status(), "accumulate: a micro-batch");
  return WithoutPlacements(*local);
}

absl::StatusOr<ValueMap> MicroBatchLoop::InsertNode(Builder& b, std::vector<Value> operands, Graph body,
                                                    int64_t length) const {
  const std::vector<Value> results = b.Ops("scan", std::move(operands),
                                           {{"body", Region(std::move(body))},
                                            {"length", length},
                                            {"scanned", static_cast<int64_t>(slices_.size())},
                                            {"summed", static_cast<int64_t>(summed_.size())},
                                            {"one_at_a_time", true}});
  RETURN_IF_ERROR(b.status());
  ValueMap made;
  for (size_t i = 0; i < results.size(); ++i)
    made[i < stacked_.size() ? stacked_[i] : summed_[i - stacked_.size()]] = results[i];
  return made;
}

}  // namespace lockstep::passes
