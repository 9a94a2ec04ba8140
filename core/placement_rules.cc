#include "core/placement_rules.h"

#include <algorithm>

namespace lockstep {
namespace {

std::vector<TensorType> TypesOf(std::span<const Value> values) {
  std::vector<TensorType> types;
  for (Value value : values) types.push_back(value.type());
  return types;
}

std::vector<TensorType> ResultTypes(const Node& node) {
  std::vector<TensorType> types;
  for (size_t i = 0; i < node.num_results(); ++i) types.push_back(node.type(i));
  return types;
}

bool AllReplicated(const std::vector<Placement>& placements) {
  return std::all_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_replicated(); });
}

// Checks that the op can be placed as a whole, with its operands placed as they are. `name` names the node in the
// message.
absl::Status CheckRuling(const PlacementRuleResult& ruling, std::span<const Value> operands, const std::string& name,
                         const std::string& axis) {
  if (!ruling.failure.empty()) {
    return InvalidArgument() << name << " cannot be placed along axis " << axis << ": " << ruling.failure;
  }
  if (ruling.decompose) {
    return InvalidArgument() << name << " mixes the values of all ranks along axis " << axis
                             << " and must be decomposed first";
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const Placement &is = ruling.operands[i], &must = ruling.required[i];
    if (is == must) continue;
    ErrorStream error = InvalidArgument() << name << " needs %" << operands[i].name() << " " << must << " along axis "
                                          << axis << ", but it is " << is;
    const auto local =
        std::find_if(ruling.operands.begin(), ruling.operands.end(), [](const Placement& p) { return p.is_local(); });
    if (local != ruling.operands.end()) {
      const Value other = operands[static_cast<size_t>(local - ruling.operands.begin())];
      return error << ", and %" << other.name() << " is local: " << is << " cannot be combined with a local value";
    }
    const std::string missing = MissingCollective(is, must);
    return error << (missing.empty() ? "" : ": ") << missing;
  }
  return absl::OkStatus();
}

// Places a node on one rank alone: if an operand is at that rank and the others are there or replicated, or if all are
// replicated and `wanted` is at a rank. Returns false if neither holds, and for collectives along the axis, whose rules
// decide.
bool PlaceAtOneRank(const NodeToPlace& node, const MeshAxis& axis, const std::optional<Placement>& wanted,
                    PlacementRuleResult& ruling) {
  const auto at =
      std::find_if(ruling.operands.begin(), ruling.operands.end(), [](const Placement& p) { return p.is_at(); });
  const bool may_be = wanted && wanted->is_at() && AllReplicated(ruling.operands);
  if (at == ruling.operands.end() && !may_be) return false;
  if (node.op.collective() && std::get<std::string>(node.attributes.find("axis")->second) == axis.name) return false;
  const Placement rank = may_be ? *wanted : *at;
  ruling.required = ruling.operands;
  for (Placement& required : ruling.required) {
    if (!required.is_replicated()) required = rank;
  }
  ruling.results.assign(node.results.size(), rank);
  return true;
}

// The op that moves a value from the placement `from` to `to` along an axis; empty if no single op does.
std::string_view MovingOp(const Placement& from, const Placement& to) {
  if (from.is_partial() && to.is_replicated()) return "all_reduce";
  if (from.is_partial() && to.is_split()) return "reduce_scatter";
  if (from.is_split() && to.is_replicated()) return "all_gather";
  if (from.is_replicated() && to.is_split()) return "shard";
  if (from.is_at() && to.is_at()) return "collective_permute";
  if (from.is_at() && to.is_replicated()) return "collective_broadcast";
  return "";
}

PlacementMap With(PlacementMap placements, const std::string& axis, const Placement& placement) {
  placements.insert_or_assign(axis, placement);
  return WithoutReplicated(std::move(placements));
}

}  // namespace

PlacementRuleResult AskPlacementRule(const NodeToPlace& node, const MeshAxis& axis, std::optional<Placement> wanted,
                                     std::optional<std::vector<Placement>> operands) {
  PlacementRuleResult ruling;
  if (operands) ruling.operands = *std::move(operands);
  else
    for (Value operand : node.operands) ruling.operands.push_back(operand.placement(axis.name));
  if (PlaceAtOneRank(node, axis, wanted, ruling)) return ruling;
  const std::vector<TensorType> types = TypesOf(node.operands);
  PlacementContext rule(node.op, node.attributes, types, node.results, ruling.operands, axis, wanted);
  node.op.place()(rule);
  ruling.required = rule.required();
  ruling.results = rule.results();
  ruling.decompose = rule.decompose();
  ruling.decompose_with = rule.decompose_with();
  ruling.failure = rule.failure();
  return ruling;
}

absl::StatusOr<std::vector<PlacementMap>> PlaceResults(const OpDef& op, const AttributeMap& attributes,
                                                       std::span<const Value> operands,
                                                       std::span<const TensorType> results, const Mesh& mesh) {
  std::vector<PlacementMap> placements(results.size());
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    const PlacementRuleResult ruling = AskPlacementRule({op, attributes, operands, results}, axis);
    RETURN_IF_ERROR(CheckRuling(ruling, operands, op.name(), axis.name));
    for (size_t i = 0; i < results.size(); ++i) placements[i].emplace(axis.name, ruling.results[i]);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (SplitsEvenly(results[i].shape, placements[i], mesh)) continue;
    return InvalidArgument() << op.name() << ": the ranks of " << mesh.ToString() << " cannot share the result "
                             << results[i] << " evenly";
  }
  return placements;
}

absl::Status CheckPlacements(const Graph& graph, const Node& node) {
  const std::vector<TensorType> types = ResultTypes(node);
  const NodeToPlace to_place{node.op(), node.attributes(), node.operands(), types};
  for (const MeshAxis& axis : graph.mesh().axes()) {
    if (axis.size == 1) continue;
    const auto written = [&](size_t i) { return PlacementAlong(node.placements(i), axis.name); };
    PlacementRuleResult ruling = AskPlacementRule(to_place, axis);
    const bool is_slice = node.num_results() == 1 && written(0).is_split();
    if (AllReplicated(ruling.operands) && (is_slice || written(0).is_at()))
      ruling = AskPlacementRule(to_place, axis, written(0));
    RETURN_IF_ERROR(CheckRuling(ruling, node.operands(), node.Describe(), axis.name));
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (ruling.results[i] == written(i)) continue;
      return InvalidArgument() << "%" << node.result_name(i) << " is written " << written(i) << " along axis "
                               << axis.name << ", but " << node.Describe() << " makes it " << ruling.results[i];
    }
  }
  for (size_t i = 0; i < node.num_results(); ++i) {
    if (SplitsEvenly(node.type(i).shape, node.placements(i), graph.mesh())) continue;
    return InvalidArgument() << node.Describe() << ": the ranks of " << graph.mesh().ToString() << " cannot share %"
                             << node.result_name(i) << " of " << node.type(i) << " evenly";
  }
  return absl::OkStatus();
}

bool SplitsEvenly(const Shape& shape, const PlacementMap& placements, const Mesh& mesh) {
  std::vector<int64_t> extents = shape.dims();
  for (const auto& [name, placement] : placements) {
    if (!placement.is_split() || !mesh.has_axis(name)) continue;
    if (!shape.has_dim(placement.dim())) return false;
    int64_t& extent = extents[static_cast<size_t>(placement.dim())];
    const int64_t ranks = *mesh.axis_size(name);
    if (extent % ranks != 0) return false;
    extent /= ranks;
  }
  return true;
}

std::string MissingCollective(const Placement& from, const Placement& to) {
  const std::string op(MovingOp(from, to));
  return op.empty() ? op : (op[0] == 'a' ? "an " : "a ") + op + " is missing";
}

absl::StatusOr<Value> PlacementMover::Move(Value value, const Placement& to, std::string_view consumer) {
  if (value.placement(axis_.name) == to) return value;
  for (const auto& [placement, moved] : moved_[value]) {
    if (placement == to) return moved;
  }
  ASSIGN_OR_RETURN(const Value moved, Convert(value, to, consumer));
  graph_.SetName(moved, value.name());
  moved_[value].emplace_back(to, moved);
  return moved;
}

absl::StatusOr<Value> PlacementMover::Convert(Value value, const Placement& to, std::string_view consumer) {
  const Placement from = value.placement(axis_.name);
  if (from.is_local()) {
    return InvalidArgument()
           << consumer << " needs %" << value.name() << " " << to << " along axis " << axis_.name
           << ", but its values differ between ranks and have no global meaning (it is local), made by "
           << value.node->Describe();
  }
  const bool comes_from_nowhere = to.is_partial() || to.is_local() || (to.is_at() && !from.is_at());
  if (comes_from_nowhere || (!may_communicate_ && !from.is_replicated())) {
    const std::string missing = MissingCollective(from, to);
    return Internal() << consumer << " needs %" << value.name() << " " << to << " along axis " << axis_.name
                      << ", but it is " << from << (missing.empty() ? "" : ": ") << missing;
  }
  const std::string_view op = MovingOp(from, to);
  if (op.empty()) {  // split along another dimension
    ASSIGN_OR_RETURN(const Value whole, Move(value, Placement::Replicated(), consumer));
    return Convert(whole, to, consumer);
  }
  if (from.is_replicated()) {
    ASSIGN_OR_RETURN(const Value slice, ComputeSlice(value, to));
    if (slice) return slice;
  }
  AttributeMap attributes;
  if (from.is_partial()) attributes.emplace("kind", std::string(ReduceKindName(from.reduce())));
  if (from.is_at() && to.is_at()) {
    attributes.emplace("sources", std::vector<int64_t>{from.rank()});
    attributes.emplace("targets", std::vector<int64_t>{to.rank()});
  } else if (from.is_at()) {
    attributes.emplace("root", from.rank());
  }
  if (from.is_split() || to.is_split()) attributes.emplace("dim", to.is_split() ? to.dim() : from.dim());
  return Insert(op, value, std::move(attributes), to);
}

absl::StatusOr<Value> PlacementMover::Insert(std::string_view op, Value operand, AttributeMap attributes,
                                             const Placement& to) {
  attributes.emplace("axis", axis_.name);
  NodeSpec spec{&GetOp(op), {operand}, std::move(attributes), operand.node->source(), {}};
  spec.placements = {With(operand.placements(), axis_.name, to)};
  ASSIGN_OR_RETURN(Node* const node, graph_.Insert(std::move(spec), before_));
  RETURN_IF_ERROR(CheckPlacements(graph_, *node));
  return node->result();
}

bool PlacementMover::CanMove(Value value, const Placement& to) const {
  const Placement from = value.placement(axis_.name);
  if (from == to) return true;
  if (from.is_replicated()) {
    // Move prefers to compute the slice.
    if (const auto operands = OperandsOfSlice(value, to)) {
      for (size_t i = 0; i < operands->size(); ++i) {
        if (!CanMove(value.node->operand(i), (*operands)[i])) return false;
      }
      return true;
    }
  }
  const auto& axes = graph_.mesh().axes();
  return std::none_of(axes.begin(), axes.end(), [&](const MeshAxis& axis) {
    const Placement other = axis.name == axis_.name ? Placement::Replicated() : value.placement(axis.name);
    return (to.is_split() && other.is_split(to.dim())) || (from.is_split() && other.is_split(from.dim()));
  });
}

std::optional<std::vector<Placement>> PlacementMover::OperandsOfSlice(Value value, const Placement& to) const {
  const Node& node = *value.node;
  if (node.is_input() || node.op().has_trait(kCollective) || node.op().has_trait(kOptimizer) ||
      node.num_results() != 1 || node.op().ranks_eval())
    return std::nullopt;
  const std::vector<TensorType> types = ResultTypes(node);
  const PlacementRuleResult ruling =
      AskPlacementRule({node.op(), node.attributes(), node.operands(), types}, axis_, to);
  const PlacementMap placements = With(node.placements(), axis_.name, to);
  if (!AllReplicated(ruling.operands) || ruling.decompose || !ruling.failure.empty() || ruling.results[0] != to ||
      !SplitsEvenly(node.type().shape, placements, graph_.mesh()))
    return std::nullopt;
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const Value operand = node.operand(i);
    if (!SplitsEvenly(operand.shape(), With(operand.placements(), axis_.name, ruling.required[i]), graph_.mesh()))
      return std::nullopt;
  }
  return ruling.required;
}

absl::StatusOr<Value> PlacementMover::ComputeSlice(Value value, const Placement& to) {
  const std::optional<std::vector<Placement>> required = OperandsOfSlice(value, to);
  if (!required) return Value();
  const Node& node = *value.node;
  NodeSpec spec{&node.op(), {}, node.attributes(), node.source(), {node.result_name()}, {}};
  spec.placements = {With(node.placements(), axis_.name, to)};
  for (size_t i = 0; i < node.operands().size(); ++i) {
    ASSIGN_OR_RETURN(const Value operand, Move(node.operand(i), (*required)[i], node.Describe()));
    spec.operands.push_back(operand);
  }
  ASSIGN_OR_RETURN(Node* const slice, graph_.Insert(std::move(spec), before_));
  return slice->result();
}

absl::Status SliceOperands(Graph& graph, const OpDef& op, const AttributeMap& attributes, std::vector<Value>& operands,
                           Node* before) {
  ASSIGN_OR_RETURN(const AttributeMap complete, op.CompleteAttributes(attributes));
  const std::vector<TensorType> operand_types = TypesOf(operands);
  ASSIGN_OR_RETURN(const std::vector<TensorType> types, op.InferTypes(operand_types, complete, graph.mesh()));
  for (const MeshAxis& axis : graph.mesh().axes()) {
    if (axis.size == 1) continue;
    const PlacementRuleResult ruling = AskPlacementRule({op, complete, operands, types}, axis);
    if (ruling.decompose || !ruling.failure.empty()) continue;  // inserting the node returns the error
    PlacementMover mover(graph, axis, before);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!ruling.operands[i].is_replicated() || !ruling.required[i].is_split()) continue;
      ASSIGN_OR_RETURN(operands[i], mover.Move(operands[i], ruling.required[i], op.name()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> PlacedLike(Graph& graph, Value value, const PlacementMap& to, Node* before) {
  if (!graph.is_placed()) return value;
  for (const MeshAxis& axis : graph.mesh().axes()) {
    if (axis.size == 1) continue;
    PlacementMover mover(graph, axis, before);
    ASSIGN_OR_RETURN(value, mover.Move(value, PlacementAlong(to, axis.name), "the replacement of a value"));
  }
  return value;
}

}  // namespace lockstep
