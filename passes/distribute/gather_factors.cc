#include "passes/distribute/gather_factors.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/local_types.h"
#include "core/op_def.h"
#include "core/placement_rules.h"
#include "passes/distribute/wire.h"
#include "passes/optimize/dce.h"

namespace lockstep::passes {
namespace {

// The nodes that give each rank a whole value.
struct Plan {
  std::vector<Value> gathered;
  std::vector<Node*> computed;  // computed whole from whole operands, in topological order
  std::unordered_set<Value, ValueHash> planned;
  double bytes = 0;       // the bytes of the gathered values on a rank
  double operations = 0;  // the operations of the nodes in `computed` that have split operands
};

class FactorGatherer {
 public:
  FactorGatherer(Graph& graph, const FactorOptions& options, MeshAxis axis)
      : graph_(graph), options_(options), axis_(std::move(axis)) {
    Node* last = nullptr;
    for (Node& node : graph_.nodes()) {
      if (last) next_.emplace(last, &node);
      last = &node;
    }
  }

  absl::StatusOr<bool> Run();

 private:
  bool IsSum(const Node& node) const;
  bool Add(Value value, Plan& plan) const;  // false if gathering alone cannot give a rank the whole value
  bool CanComputeWhole(const Node& node) const;
  bool Pays(const Node& reduced, const Plan& plan) const;
  absl::Status Follow(const Plan& plan);

  PlacementMap Whole(const PlacementMap& placements) const;
  double BytesOnRank(Value value, const PlacementMap& placements) const;
  double OperationsOnRank(const Node& node) const;
  Node* After(Node* node);

  Graph& graph_;
  const FactorOptions& options_;
  const MeshAxis axis_;
  std::unordered_map<const Node*, Node*> next_;  // the original next node; no node is erased before the end
  ValueMap whole_;                               // from a value to its whole value, which is made right after it
};

// Returns true if the node is an all_reduce of one sum over the axis.
bool FactorGatherer::IsSum(const Node& node) const {
  return node.op().collective() == CollectiveOp::kAllReduce && node.num_results() == 1 &&
         node.attr<std::string>("kind") == "sum" && node.attr<std::string>("axis") == axis_.name &&
         node.operand(0).placement(axis_.name).is_partial(ReduceKind::kSum);
}

PlacementMap FactorGatherer::Whole(const PlacementMap& placements) const {
  PlacementMap whole = placements;
  whole.insert_or_assign(axis_.name, Placement::Replicated());
  return WithoutReplicated(std::move(whole));
}

double FactorGatherer::BytesOnRank(Value value, const PlacementMap& placements) const {
  return static_cast<double>(LocalType(value.type(), placements, graph_.mesh()).num_bytes());
}

// Returns the operations of the node on one rank if its operands are whole along the axis.
double FactorGatherer::OperationsOnRank(const Node& node) const {
  double operations = FlopsOf(node);
  for (const MeshAxis& other : graph_.mesh().axes()) {
    bool is_split = node.placements().contains(other.name) && node.placements().at(other.name).is_split();
    for (Value operand : node.operands()) is_split = is_split || operand.placement(other.name).is_split();
    if (other.name != axis_.name && is_split) operations /= static_cast<double>(other.size);
  }
  return operations;
}

// Returns true if the node's result is whole when its operands are.
bool FactorGatherer::CanComputeWhole(const Node& node) const {
  if (node.is_input() || node.op().collective() || node.op().ranks_eval() || node.num_results() != 1) return false;
  for (const auto& [name, value] : node.attributes()) {
    if (std::holds_alternative<Region>(value)) return false;
  }
  const std::vector<TensorType> types = {node.type()};
  const PlacementRuleResult ruling = AskPlacementRule({node.op(), node.attributes(), node.operands(), types}, axis_,
                                                      std::nullopt, std::vector<Placement>(node.operands().size()));
  const auto is_whole = [](const Placement& placement) { return placement.is_replicated(); };
  return ruling.failure.empty() && !ruling.decompose && is_whole(ruling.results[0]) &&
         std::all_of(ruling.required.begin(), ruling.required.end(), is_whole);
}

bool FactorGatherer::Add(Value value, Plan& plan) const {
  const Placement placement = value.placement(axis_.name);
  if (placement.is_replicated() || whole_.contains(value) || plan.planned.contains(value)) return true;
  if (placement.is_split()) {
    if (!PlacementMover(graph_, axis_, nullptr, /*may_communicate=*/true).CanMove(value, Placement::Replicated()))
      return false;
    plan.gathered.push_back(value);
    plan.bytes += BytesOnRank(value, Whole(value.placements()));
  } else {
    Node& node = *value.node;
    if (!placement.is_partial(ReduceKind::kSum) || !CanComputeWhole(node)) return false;
    bool has_slices = false;
    for (Value operand : node.operands()) {
      if (!Add(operand, plan)) return false;
      has_slices = has_slices || operand.placement(axis_.name).is_split();
    }
    plan.computed.push_back(&node);
    if (has_slices) plan.operations += OperationsOnRank(node);
  }
  plan.planned.insert(value);
  return true;
}

bool FactorGatherer::Pays(const Node& reduced, const Plan& plan) const {
  if (options_.ignore_cost) return true;
  const double bytes = BytesOnRank(reduced.operand(0), reduced.placements()) * WireByteFraction(reduced);
  const double saved = 2 * bytes - plan.bytes;
  return saved > 0 && saved * options_.operations_per_byte > plan.operations;
}

Node* FactorGatherer::After(Node* node) {
  if (node->is_input()) return &graph_.nodes().front();
  const auto next = next_.find(node);
  return next == next_.end() ? nullptr : next->second;
}

// Inserts each new node right after the value that it makes whole, so that any later sum can use it.
absl::Status FactorGatherer::Follow(const Plan& plan) {
  for (Value value : plan.gathered) {
    PlacementMover mover(graph_, axis_, After(value.node), /*may_communicate=*/true);
    ASSIGN_OR_RETURN(whole_[value], mover.Move(value, Placement::Replicated(), value.node->Describe()));
  }
  for (Node* node : plan.computed) {
    NodeSpec spec{&node->op(), {}, node->attributes(), node->source(), {node->result_name()}};
    spec.placements = {Whole(node->placements())};
    for (Value operand : node->operands()) {
      const auto whole = whole_.find(operand);
      spec.operands.push_back(whole == whole_.end() ? operand : whole->second);
    }
    ASSIGN_OR_RETURN(Node* const computed, graph_.Insert(std::move(spec), After(node)));
    RETURN_IF_ERROR(CheckPlacements(graph_, *computed));
    whole_[node->result()] = computed->result();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> FactorGatherer::Run() {
  std::vector<Node*> open, done;
  for (Node& node : graph_.nodes()) {
    if (IsSum(node)) open.push_back(&node);
  }
  // Values that were gathered for one sum can make another sum profitable.
  for (bool found = true; found;) {
    found = false;
    for (Node*& node : open) {
      Plan plan;
      if (!node || !Add(node->operand(0), plan) || !Pays(*node, plan)) continue;
      RETURN_IF_ERROR(Follow(plan));
      graph_.ReplaceUses(node->result(), whole_.at(node->operand(0)));
      done.push_back(std::exchange(node, nullptr));
      found = true;
    }
  }
  std::vector<std::pair<Value, std::string>> names;
  for (Node* node : done) names.emplace_back(whole_.at(node->operand(0)), node->result_name());
  RemoveDeadNodesAmong(graph_, done);
  for (const auto& [value, name] : names) graph_.SetName(value, name);
  return !done.empty();
}

}  // namespace

Pass GatherFactors(FactorOptions options) {
  return {"gather-factors",
          [options = std::move(options)](Graph& graph) -> absl::StatusOr<bool> {
            const bool is_on = options.operations_per_byte > 0 || options.ignore_cost;
            const int64_t ranks = graph.mesh().axis_size(options.axis).value_or(1);
            if (!is_on || !graph.is_placed() || ranks == 1) return false;
            return FactorGatherer(graph, options, {options.axis, ranks}).Run();
          },
          Keeps::kMeaning, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
