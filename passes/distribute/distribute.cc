#include "passes/distribute/distribute.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/op_def.h"
#include "core/placement_rules.h"
#include "passes/bodies.h"
#include "passes/distribute/place_bodies.h"
#include "passes/legalize/decompose.h"

namespace lockstep::passes {
namespace {

// Places a graph along one axis, the last of `mesh`. Along the other axes `graph` is placed already.
class AxisPlacer {
 public:
  // In the body of a loop, ranks do not communicate, and results keep their placements.
  AxisPlacer(Graph graph, const MeshAxis& axis, Mesh mesh, bool is_body = false)
      : from_(std::move(graph)),
        axis_(axis),
        is_body_(is_body),
        to_(from_.name()),
        mover_(to_, axis, nullptr, /*may_communicate=*/!is_body) {
    to_.set_mesh(std::move(mesh));
  }

  absl::StatusOr<Graph> Run() {
    for (const Input& input : from_.inputs()) RETURN_IF_ERROR(AddInput(input));
    FindGradientsOfSlices();
    for (auto it = from_.nodes().begin(); it != from_.nodes().end();) {
      ASSIGN_OR_RETURN(it, Place(it));
    }
    for (const Result& result : from_.results()) RETURN_IF_ERROR(AddResult(result));
    return std::move(to_);
  }

 private:
  using Iterator = std::list<Node>::iterator;

  PlacementMap With(PlacementMap placements, const Placement& placement) const {
    placements.insert_or_assign(axis_.name, placement);
    return placements;
  }
  bool Divides(const Shape& shape, const PlacementMap& others, const Placement& placement) const {
    return SplitsEvenly(shape, With(others, placement), to_.mesh());
  }
  bool CanBePlaced(const Node& node, const PlacementRuleResult& ruling) const;

  absl::Status AddInput(const Input& input);
  absl::Status AddResult(const Result& result);
  absl::StatusOr<Iterator> Place(Iterator node);  // returns the next node to place
  absl::Status PlaceBody(Node& scan, const std::vector<Value>& operands);
  absl::Status PlaceByRule(const Node& node, const PlacementRuleResult& ruling);
  void FindGradientsOfSlices();
  absl::Status ReduceToSlices(const Node& node, const PlacementRuleResult& ruling);
  absl::Status ReduceOnce(const Node& node, const PlacementRuleResult& ruling);
  absl::Status MoveBefore(Node& node, const PlacementRuleResult& ruling);

  Graph from_;
  const MeshAxis axis_;
  const bool is_body_;
  Graph to_;
  PlacementMover mover_;
  ValueMap map_;  // from a value of from_ to the result of its node in to_, or to the reduced result
  // Gradients of which an optimizer requires a slice, with its placement, and their elementwise operands.
  std::unordered_map<Value, Placement, ValueHash> slices_;
};

absl::Status AxisPlacer::AddInput(const Input& input) {
  const Placement placement = input.value.placement(axis_.name);
  const Shape& shape = input.value.shape();
  if (placement.is_split() && !shape.has_dim(placement.dim())) {
    return InvalidArgument() << "input %" << input.name() << " is split along dimension " << placement.dim() << " of "
                             << input.value.type();
  }
  PlacementMap placements;  // along the axes up to this one
  for (const MeshAxis& axis : to_.mesh().axes()) placements.emplace(axis.name, input.value.placement(axis.name));
  if (!SplitsEvenly(shape, placements, to_.mesh())) {
    int64_t shares = axis_.size;
    std::string other_axes;
    for (const MeshAxis& axis : to_.mesh().axes()) {
      if (axis.name == axis_.name || !placements.at(axis.name).is_split(placement.dim())) continue;
      shares *= axis.size;
      other_axes += (other_axes.empty() ? ", which axis " : " and ") + axis.name;
    }
    if (!other_axes.empty()) other_axes += " splits too,";
    return InvalidArgument() << "dimension " << placement.dim() << " of input %" << input.name() << " ("
                             << input.value.type() << ")" << other_axes << " cannot be shared evenly by the "
                             << axis_.size << " ranks of axis " << axis_.name << ": " << shape[placement.dim()]
                             << " is not a multiple of " << shares;
  }
  // Placements along axes that are placed later are kept.
  ASSIGN_OR_RETURN(map_[input.value], to_.AddInputLike(input, input.value.type(), input.placements()));
  return absl::OkStatus();
}

// Returns true if the ranks can share all dimensions that are to be split, and the operands can be moved so.
bool AxisPlacer::CanBePlaced(const Node& node, const PlacementRuleResult& ruling) const {
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const Value operand = map_.at(node.operand(i));
    if (!Divides(operand.shape(), operand.placements(), ruling.required[i])) return false;
    if (ruling.required[i].is_split() && !mover_.CanMove(operand, ruling.required[i])) return false;
  }
  for (size_t i = 0; i < node.num_results(); ++i) {
    if (!Divides(node.type(i).shape, node.placements(i), ruling.results[i])) return false;
  }
  return true;
}

absl::StatusOr<AxisPlacer::Iterator> AxisPlacer::Place(Iterator it) {
  Node& node = *it;
  std::vector<Value> operands;
  for (Value operand : node.operands()) operands.push_back(map_.at(operand));
  std::vector<TensorType> types;
  for (size_t i = 0; i < node.num_results(); ++i) types.push_back(node.type(i));
  if (node.op().has_trait(kLoop)) RETURN_IF_ERROR(PlaceBody(node, operands));
  const NodeToPlace to_place{node.op(), node.attributes(), operands, types};
  PlacementRuleResult ruling = AskPlacementRule(to_place, axis_);
  RETURN_IF_ERROR(ReduceToSlices(node, ruling));
  RETURN_IF_ERROR(ReduceOnce(node, ruling));
  for (size_t i = 0; i < operands.size(); ++i) operands[i] = map_.at(node.operand(i));
  if (node.Is("exchange") && operands[0].node->Is("all_reduce"))
    return FailedPrecondition() << node.Describe()
                                << " gets a gradient that is summed already, since another node needs "
                                << "the sum of %" << operands[0].name();
  ruling = AskPlacementRule(to_place, axis_);
  if (ruling.decompose) {
    if (!node.op().decompose())
      return Internal() << node.Describe() << " cannot be distributed along axis " << axis_.name
                        << " and has no decomposition";
    RETURN_IF_ERROR(MoveBefore(node, ruling));
    for (const auto& [name, value] : ruling.decompose_with)
      RETURN_IF_ERROR(Annotate(from_.SetAttribute(&node, name, value), node.Describe()));
    return ReplaceByDecomposition(from_, it);
  }
  // If the ranks cannot share a dimension, such as a batch that is merged with a dimension of odd size, or if another
  // axis splits it, every rank computes the whole.
  if (ruling.failure.empty() && !CanBePlaced(node, ruling))
    ruling = AskPlacementRule(to_place, axis_, std::nullopt, std::vector<Placement>(operands.size()));
  RETURN_IF_ERROR(PlaceByRule(node, ruling));
  return std::next(it);
}

// Goes from the optimizers, whose states are inputs, back to the sums that the gradients are computed from.
void AxisPlacer::FindGradientsOfSlices() {
  for (auto it = from_.nodes().rbegin(); it != from_.nodes().rend(); ++it) {
    Node& node = *it;
    if (node.op().has_trait(kOptimizer)) {
      std::vector<Placement> operands;
      for (Value operand : node.operands()) {
        const auto found = map_.find(operand);
        operands.push_back(found == map_.end() ? Placement::Replicated() : found->second.placement(axis_.name));
      }
      std::vector<TensorType> types;
      for (size_t i = 0; i < node.num_results(); ++i) types.push_back(node.type(i));
      const size_t gradient = node.op().operand_names().size() - 1;
      const NodeToPlace to_place{node.op(), node.attributes(), node.operands(), types};
      const PlacementRuleResult ruling = AskPlacementRule(to_place, axis_, std::nullopt, operands);
      if (ruling.required[gradient].is_split()) slices_.emplace(node.operand(gradient), ruling.required[gradient]);
    } else if (node.op().has_trait(kElementwise) && slices_.contains(node.result())) {
      for (Value operand : node.operands()) slices_.emplace(operand, slices_.at(node.result()));
    }
  }
}

// Reduces a sum to slices if an optimizer requires slices of it, and `node`, such as the one of its norm, requires it
// reduced earlier.
absl::Status AxisPlacer::ReduceToSlices(const Node& node, const PlacementRuleResult& ruling) {
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const auto slices = slices_.find(node.operand(i));
    Value& value = map_.at(node.operand(i));
    if (slices == slices_.end() || !value.placement(axis_.name).is_partial() || !ruling.required[i].is_replicated() ||
        !Divides(value.shape(), value.placements(), slices->second) || !mover_.CanMove(value, slices->second))
      continue;
    ASSIGN_OR_RETURN(value, mover_.Move(value, slices->second, node.Describe()));
  }
  return absl::OkStatus();
}

// Reduces a partial sum before its first user if several nodes would pass it on: once, instead of once behind each. For
// example, if ranks have columns of a layer, its gradient is reduced before the backward pass of a normalisation, whose
// gradients are all linear in it.
absl::Status AxisPlacer::ReduceOnce(const Node& node, const PlacementRuleResult& ruling) {
  if (is_body_) return absl::OkStatus();  // ranks do not communicate there
  for (size_t i = 0; i < node.operands().size(); ++i) {
    Value& value = map_.at(node.operand(i));
    const Placement is = value.placement(axis_.name);
    if (!is.is_partial(ReduceKind::kSum) || ruling.required[i] != is || !IsReducedOnce(node.operand(i))) continue;
    ASSIGN_OR_RETURN(value, mover_.Move(value, Placement::Replicated(), node.Describe()));
  }
  return absl::OkStatus();
}

// Moves the operands of a node that will be decomposed. In from_, a reshape of the same shape stands for each moved
// operand, so that the nodes of the decomposition use the moved value.
absl::Status AxisPlacer::MoveBefore(Node& node, const PlacementRuleResult& ruling) {
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const Value operand = node.operand(i);
    if (ruling.required[i] == ruling.operands[i]) continue;
    ASSIGN_OR_RETURN(const Value moved, mover_.Move(map_.at(operand), ruling.required[i], node.Describe()));
    NodeSpec spec{&GetOp("reshape"), {operand}, {{"shape", operand.shape().dims()}}, node.source(), {}};
    ASSIGN_OR_RETURN(Node* const in_place, from_.Insert(std::move(spec), &node));
    map_[in_place->result()] = moved;
    from_.SetOperand(&node, i, in_place->result());
  }
  return absl::OkStatus();
}

absl::Status AxisPlacer::PlaceBody(Node& scan, const std::vector<Value>& operands) {
  std::vector<Placement> placements;
  for (Value operand : operands) placements.push_back(operand.placement(axis_.name));
  return PlaceScanBody(from_, scan, placements, axis_.name, to_.mesh(), [&](Graph body) {
    return AxisPlacer(std::move(body), axis_, to_.mesh(), /*is_body=*/true).Run();
  });
}

absl::Status AxisPlacer::PlaceByRule(const Node& node, const PlacementRuleResult& ruling) {
  if (!ruling.failure.empty()) {
    return InvalidArgument() << node.Describe() << " cannot be placed along axis " << axis_.name << ": "
                             << ruling.failure;
  }
  NodeSpec spec = CopyOf(node, map_);
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const bool was_partial = spec.operands[i].placement(axis_.name).is_partial();
    ASSIGN_OR_RETURN(spec.operands[i], mover_.Move(spec.operands[i], ruling.required[i], node.Describe()));
    // Later nodes use the reduced value, so that the sum is not reduced again.
    if (was_partial && ruling.required[i].is_replicated()) map_[node.operand(i)] = spec.operands[i];
  }
  for (size_t i = 0; i < node.num_results(); ++i) spec.placements[i] = With(spec.placements[i], ruling.results[i]);
  ASSIGN_OR_RETURN(Node* const placed, to_.Insert(std::move(spec)));
  for (size_t i = 0; i < node.num_results(); ++i) map_[const_cast<Node&>(node).result(i)] = placed->result(i);
  return absl::OkStatus();
}

absl::Status AxisPlacer::AddResult(const Result& result) {
  const Value value = map_.at(result.value);
  const Placement is = value.placement(axis_.name);
  PlacementMap placements = result.placements;
  if (result.is_state) {
    const Placement state = from_.FindInput(result.name)->value.placement(axis_.name);
    ASSIGN_OR_RETURN(const Value next, mover_.Move(value, state, "state %" + result.name));
    placements[axis_.name] = state;
    return to_.AddStateResult(result.name, next, std::move(placements));
  }
  const auto declared = placements.find(axis_.name);
  Placement wanted = is.is_partial() ? Placement::Replicated() : is;
  if (declared != placements.end()) wanted = declared->second;
  if (is.is_local()) wanted = Placement::Local();
  if (is_body_) wanted = is;
  if (!Divides(value.shape(), value.placements(), wanted)) wanted = Placement::Replicated();
  ASSIGN_OR_RETURN(const Value moved, mover_.Move(value, wanted, "result " + result.name));
  placements[axis_.name] = wanted;
  return to_.AddResult(result.name, moved, std::move(placements));
}

// Decomposes fusions, so that collectives can come between their ops. Loops stay, and are placed with their bodies.
// Updates of parameter servers stay too, as ranks do not run them, and exchanges, whose bodies are placed already.
absl::Status OpenRegions(Graph& graph) {
  RETURN_IF_ERROR(InBodies(graph, [](Graph& body) -> absl::StatusOr<bool> {
                    RETURN_IF_ERROR(OpenRegions(body));
                    return true;
                  }).status());
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    if (it->op().has_trait(kLoop) || it->op().has_trait(kOfServers) || it->Is("exchange") ||
        it->Is("exchange_weights")) {
      ++it;
      continue;
    }
    const auto& attributes = it->attributes();
    const bool has_region = std::any_of(attributes.begin(), attributes.end(),
                                        [](const auto& each) { return std::holds_alternative<Region>(each.second); });
    if (has_region) {
      ASSIGN_OR_RETURN(it, ReplaceByDecomposition(graph, it));
    } else {
      ++it;
    }
  }
  return absl::OkStatus();
}

// Removes the placements along an axis of one rank.
void ForgetAxis(Graph& graph, const std::string& axis) {
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    PlacementMap placements = graph.inputs()[i].placements();
    placements.erase(axis);
    graph.set_input_placements(i, std::move(placements));
  }
  for (size_t i = 0; i < graph.results().size(); ++i) {
    PlacementMap placements = graph.results()[i].placements;
    placements.erase(axis);
    graph.set_result_placements(i, std::move(placements));
  }
}

// Returns the smallest number of ranks above 1 that can share all inputs that are split along the axis; 1 if no input
// is split along it, or no number of ranks can share them.
int64_t FewestRanks(const Graph& graph, const std::string& axis) {
  int64_t divisor = 0;
  for (const Input& input : graph.inputs()) {
    const Placement placement = input.value.placement(axis);
    if (placement.is_split()) divisor = std::gcd(divisor, input.value.shape()[placement.dim()]);
  }
  if (divisor < 2) return 1;
  int64_t ranks = 2;
  while (divisor % ranks != 0) ++ranks;
  return ranks;
}

}  // namespace

bool IsReducedOnce(const Value& value) {
  const std::vector<Node*>& users = value.node->users();
  std::set<const Node*> passing;
  for (const Node* user : users) {
    if (user->Is("exchange") && user->operand(0) == value) return false;  // it reduces the sum in its own way
    if (!user->op().reduction()) passing.insert(user);  // the result of a reduction has fewer bytes to reduce
  }
  return passing.size() > 1 && value.shape().rank() > 1;
}

absl::StatusOr<Graph> DistributeAlong(Graph graph, const MeshAxis& axis) {
  RETURN_IF_ERROR(OpenRegions(graph));
  std::vector<MeshAxis> axes = graph.mesh().axes();
  axes.push_back(axis);
  return AxisPlacer(std::move(graph), axis, Mesh(std::move(axes))).Run();
}

absl::StatusOr<Graph> DistributeGraph(const Graph& graph, const Mesh& mesh) {
  if (mesh.empty()) return graph.Clone();
  if (!graph.mesh().empty())
    return InvalidArgument() << "graph @" << graph.name() << " is distributed already, over "
                             << graph.mesh().ToString();
  std::vector<MeshAxis> axes;
  Graph result = graph.Clone();
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size < 1)
      return InvalidArgument() << "mesh axis " << axis.name << " has size " << axis.size << ", expected at least 1";
    if (axis.size > 1) axes.push_back(axis);
    else ForgetAxis(result, axis.name);
  }
  if (axes.empty()) return graph.Clone();
  for (const MeshAxis& axis : axes) {
    ASSIGN_OR_RETURN(result, DistributeAlong(std::move(result), axis));
  }
  return result;
}

absl::StatusOr<Placement> PlacementOfResult(const Graph& graph, std::string_view name, const std::string& axis) {
  const int64_t ranks = FewestRanks(graph, axis);
  if (ranks == 1) return Placement::Replicated();
  ASSIGN_OR_RETURN(const Graph placed, DistributeGraph(graph, Mesh({{axis, ranks}})));
  return PlacementAlong(placed.FindResult(name)->placements, axis);
}

Pass Distribute(Mesh mesh) {
  return {"distribute",
          [mesh = std::move(mesh)](Graph& graph) -> absl::StatusOr<bool> {
            ASSIGN_OR_RETURN(Graph distributed, DistributeGraph(graph, mesh));
            const bool changed = !(distributed.mesh() == graph.mesh());
            if (changed) graph = std::move(distributed);
            return changed;
          },
          Keeps::kMeaning, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
