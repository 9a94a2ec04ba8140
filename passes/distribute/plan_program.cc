#include "passes/distribute/plan_program.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/op_def.h"
#include "core/placement_rules.h"
#include "passes/distribute/plan_costs.h"

namespace lockstep::passes {
namespace {

// A use of a value, by a node or a result of a segment.
struct Use {
  int segment = 0;
  bool is_forward = false;
};

class ProgramMaker {
 public:
  ProgramMaker(const Graph& graph, const Mesh& mesh, const std::string& axis, const OptimizerStates& kept)
      : graph_(graph), mesh_(mesh), axis_(axis), kept_(kept), forward_(ForwardNodes(graph)) {}

  PlanProgram Make() {
    NumberValues();
    FindDecisions();
    if (program_.decisions.empty()) return std::move(program_);
    PlaceForward();
    PlaceBackward();
    PlaceResults();
    FindCuts();
    return std::move(program_);
  }

 private:
  size_t last() const { return program_.segments.size() - 1; }
  int Id(const Value& value) const { return ids_.at(value); }
  int& SegmentOf(const Value& value) { return segment_[At(Id(value))]; }
  static size_t At(int i) { return static_cast<size_t>(i); }

  void NumberValues();
  void FindDecisions();
  std::vector<Placement> CandidatesOf(const Input& state) const;
  void AddDecision(const Input& state, std::vector<Placement> candidates);
  void PlaceForward();
  void PlaceBackward();
  std::unordered_map<const Node*, int> FindAnchors();
  void PlaceResults();
  void FindCuts();
  void Add(PlanItem item, int segment);

  const Graph& graph_;
  const Mesh& mesh_;
  const std::string& axis_;
  const OptimizerStates& kept_;
  const std::unordered_set<const Node*> forward_;
  PlanProgram program_;
  std::unordered_map<Value, int, ValueHash> ids_;
  std::vector<int> segment_;  // the segment that computes a value; -1 for inputs without a decision
  std::vector<std::vector<Use>> uses_;
};

void ProgramMaker::NumberValues() {
  const auto add = [&](const Value& value) {
    ids_.emplace(value, static_cast<int>(program_.values.size()));
    program_.values.push_back(value);
  };
  for (const Input& input : graph_.inputs()) add(input.value);
  for (const Node& node : graph_.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i) add(const_cast<Node&>(node).result(i));
  }
  segment_.assign(program_.values.size(), -1);
  uses_.resize(program_.values.size());
}

std::vector<Placement> ProgramMaker::CandidatesOf(const Input& state) const {
  std::vector<Placement> candidates = {Placement::Replicated()};
  const Shape& shape = state.value.shape();
  if (!state.is_state || !IsFloat(state.value.dtype()) || !state.value.placement(axis_).is_replicated())
    return candidates;
  PlacementMap placements = state.placements();
  for (int64_t dim = 0; dim < shape.rank(); ++dim) {
    placements.insert_or_assign(axis_, Placement::Split(dim));
    const bool is_taken = std::any_of(state.placements().begin(), state.placements().end(),
                                      [&](const auto& each) { return each.second.is_split(dim); });
    if (shape[dim] > 1 && !is_taken && SplitsEvenly(shape, placements, mesh_))
      candidates.push_back(Placement::Split(dim));
  }
  return candidates;
}

void ProgramMaker::AddDecision(const Input& state, std::vector<Placement> candidates) {
  PlanDecision decision{Id(state.value), std::move(candidates), {}};
  const int segment = static_cast<int>(program_.decisions.size());
  segment_[At(decision.value)] = segment;
  const auto kept = kept_.find(state.name());
  if (kept != kept_.end()) {
    for (const std::string& name : kept->second) {
      const Input* const input = graph_.FindInput(name);
      if (input == nullptr || !input->value.placement(axis_).is_replicated()) continue;
      PlanDecision::Kept with{Id(input->value), {}};
      const Shape &shape = input->value.shape(), &whole = state.value.shape();
      for (const Placement& placement : decision.candidates) {
        const bool follows = placement.is_split() && shape.rank() == whole.rank() &&
                             shape[placement.dim()] == whole[placement.dim()] &&
                             !std::any_of(input->placements().begin(), input->placements().end(),
                                          [&](const auto& each) { return each.second.is_split(placement.dim()); });
        with.placements.push_back(follows ? placement : Placement::Replicated());
      }
      segment_[At(with.value)] = segment;
      decision.kept.push_back(std::move(with));
    }
  }
  program_.decisions.push_back(std::move(decision));
}

// Adds the decisions in the order in which the forward half uses their states.
void ProgramMaker::FindDecisions() {
  std::set<std::string> kept;
  for (const auto& [name, names] : kept_) kept.insert(names.begin(), names.end());
  for (const Node& node : graph_.nodes()) {
    if (!forward_.contains(&node)) continue;
    for (const Value& operand : node.operands()) {
      if (SegmentOf(operand) >= 0 || !operand.node->is_input() || kept.contains(operand.name())) continue;
      std::vector<Placement> candidates = CandidatesOf(*graph_.FindInput(operand.name()));
      if (candidates.size() > 1) AddDecision(*graph_.FindInput(operand.name()), std::move(candidates));
    }
  }
  program_.segments.resize(program_.decisions.size());
  for (const Input& input : graph_.inputs()) {
    if (SegmentOf(input.value) < 0) program_.inputs.push_back(Id(input.value));
  }
}

void ProgramMaker::Add(PlanItem item, int segment) {
  PlanSegment& into = program_.segments[At(segment)];
  for (const int operand : item.operands) uses_[At(operand)].push_back({segment, item.is_forward});
  for (const int result : item.results) segment_[At(result)] = segment;
  (item.is_forward ? into.forward : into.backward).push_back(std::move(item));
}

PlanItem ItemOf(const Node& node, bool is_forward, const std::unordered_map<Value, int, ValueHash>& ids) {
  PlanItem item{&node, {}, {}, -1, is_forward};
  for (const Value& operand : node.operands()) item.operands.push_back(ids.at(operand));
  for (size_t i = 0; i < node.num_results(); ++i) item.results.push_back(ids.at(const_cast<Node&>(node).result(i)));
  return item;
}

void ProgramMaker::PlaceForward() {
  for (const Node& node : graph_.nodes()) {
    if (!forward_.contains(&node)) continue;
    int segment = 0;
    for (const Value& operand : node.operands()) segment = std::max(segment, SegmentOf(operand));
    Add(ItemOf(node, true, ids_), segment);
  }
}

// Returns, for nodes whose results only optimizers use, the last segment of a state that these update. For a gradient
// of weights it is the segment of the weights. Users without dimensions, such as norms, do not count.
std::unordered_map<const Node*, int> ProgramMaker::FindAnchors() {
  std::unordered_map<const Node*, int> anchors;
  std::unordered_set<const Node*> of_scalars;
  for (auto it = graph_.nodes().rbegin(); it != graph_.nodes().rend(); ++it) {
    const Node& node = *it;
    if (forward_.contains(&node)) continue;
    if (node.op().has_trait(kOptimizer)) {
      anchors.emplace(&node, SegmentOf(node.operand(0)));
      continue;
    }
    int anchor = -1;
    bool serves_others = false;
    for (const Node* user : node.users()) {
      const auto of_user = anchors.find(user);
      if (of_user != anchors.end()) anchor = std::max(anchor, of_user->second);
      else serves_others |= !of_scalars.contains(user);
    }
    const bool is_scalar = node.num_results() == 1 && node.type().shape.rank() == 0;
    if (is_scalar || (anchor < 0 && !serves_others && !node.users().empty())) of_scalars.insert(&node);
    else if (anchor >= 0 && !serves_others) anchors.emplace(&node, anchor);
  }
  return anchors;
}

// Adds each node of the backward half to the segment in which its backward operands are computed, but not before (in
// the order of the backward half) the segment of the forward values or the weights that it belongs to.
void ProgramMaker::PlaceBackward() {
  const std::unordered_map<const Node*, int> anchors = FindAnchors();
  for (const Node& node : graph_.nodes()) {
    if (forward_.contains(&node)) continue;
    int ready = static_cast<int>(last()), about = -1;
    for (const Value& operand : node.operands()) {
      const bool is_backward = !operand.node->is_input() && !forward_.contains(operand.node);
      if (!is_backward) about = std::max(about, SegmentOf(operand));
      else if (operand.shape().rank() > 0) ready = std::min(ready, SegmentOf(operand));
    }
    const auto anchor = anchors.find(&node);
    if (anchor != anchors.end()) about = std::max(about, anchor->second);
    Add(ItemOf(node, false, ids_), about < 0 ? ready : std::min(ready, about));
  }
}

void ProgramMaker::PlaceResults() {
  for (const Result& result : graph_.results()) {
    const int segment = std::max(0, SegmentOf(result.value));
    PlanItem item{nullptr, {Id(result.value)}, {}, -1, !result.is_state};
    if (result.is_state) {
      item.state = Id(graph_.FindInput(result.name)->value);
      item.operands.push_back(item.state);
    }
    Add(std::move(item), segment);
  }
}

void ProgramMaker::FindCuts() {
  std::vector<bool> is_backward(program_.values.size(), false);
  for (const PlanSegment& segment : program_.segments) {
    for (const PlanItem& item : segment.backward) {
      for (const int result : item.results) is_backward[At(result)] = true;
    }
  }
  for (size_t v = 0; v < program_.values.size(); ++v) {
    const Value value = program_.values[v];
    int last_use = -1, first_backward = static_cast<int>(program_.segments.size());
    for (const Use& use : uses_[v]) {
      last_use = std::max(last_use, use.segment);
      if (!use.is_forward) first_backward = std::min(first_backward, use.segment);
    }
    const int made = segment_[v];
    const bool is_read_back = first_backward < static_cast<int>(program_.segments.size());
    if (!is_backward[v] && made >= 0 && is_read_back && IsStored(value))
      program_.segments[At(made)].stored.push_back(static_cast<int>(v));
    if (value.shape().rank() == 0) continue;
    for (int i = 0; i < static_cast<int>(program_.segments.size()); ++i) {
      PlanSegment& segment = program_.segments[At(i)];
      const bool is_given = !is_backward[v] && made < i && last_use >= i;
      if (is_given) segment.given.push_back(static_cast<int>(v));
      if (first_backward < i && (is_given || made >= i)) segment.returned.push_back(static_cast<int>(v));
    }
  }
}

}  // namespace

PlanProgram MakePlanProgram(const Graph& graph, const Mesh& mesh, const std::string& axis,
                            const OptimizerStates& kept) {
  return ProgramMaker(graph, mesh, axis, kept).Make();
}

}  // namespace lockstep::passes
