#include "core/verifier.h"

#include <set>
#include <unordered_set>
#include <vector>

#include "core/local_types.h"
#include "core/op_def.h"
#include "core/placement_rules.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxRanks = 1 << 15;  // of a mesh, so that its product with an extent (at most 2^47) fits in 63 bits

// "state %w" or "result loss": the first state, else the first result, that depends on `value`; "" if none does.
std::string Downstream(const Graph& graph, const Node& from) {
  std::unordered_set<const Node*> reached = {&from};
  std::vector<const Node*> open = {&from};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const Node* user : node->users()) {
      if (reached.insert(user).second) open.push_back(user);
    }
  }
  std::string found;
  for (const Result& result : graph.results()) {
    if (!reached.contains(result.value.node)) continue;
    if (result.is_state) return "state %" + result.name;
    if (found.empty()) found = "result " + result.name;
  }
  return found;
}

std::string Missing(const Placement& from, const Placement& to) {
  const std::string missing = MissingCollective(from, to);
  return missing.empty() ? "" : ": " + missing;
}

absl::Status CheckResult(const Graph& graph, const Result& result, std::string_view axis, const Placement& is) {
  const Placement declared = PlacementAlong(result.placements, axis);
  if (!result.is_state) {
    if (is == declared || declared.is_local() || (is.is_replicated() && declared.is_at())) return absl::OkStatus();
    return InvalidArgument() << "result " << result.name << " is " << is << " along axis " << axis << ", made by "
                             << result.value.node->Describe() << ", but declared " << declared << Missing(is, declared);
  }
  const Placement state = graph.FindInput(result.name)->value.placement(axis);
  const bool is_there = is == state || (is.is_replicated() && state.is_at());
  if (is_there && declared == state) return absl::OkStatus();
  ErrorStream error = InvalidArgument() << "state %" << result.name << " is " << state << " along axis " << axis
                                        << ", but its next value, made by " << result.value.node->Describe() << ", is "
                                        << is << Missing(is, state);
  if (state.is_local()) return error << "; the next value of a local state must be local";
  return error << "; state %" << result.name << " would diverge between ranks";
}

// Checks the placements of one value: their axes exist, dimensions that are split exist, and the global type of a local
// value is addressable. The message begins with who().
template <typename Who>
absl::Status CheckPlaced(const Graph& graph, const TensorType& type, const PlacementMap& placements, Who who) {
  for (const auto& [axis, placement] : placements) {
    if (!graph.mesh().empty() && !graph.mesh().has_axis(axis)) {
      return InvalidArgument() << who() << " is placed along axis " << axis << ", which is not in the mesh "
                               << graph.mesh().ToString();
    }
    const int64_t ranks = graph.mesh().empty() ? kMaxRanks : *graph.mesh().axis_size(axis);
    if (placement.is_at() && (placement.rank() < 0 || placement.rank() >= ranks)) {
      return InvalidArgument() << who() << " is " << placement << " along axis " << axis << " of the mesh "
                               << graph.mesh().ToString();
    }
    if (placement.is_split() && !type.shape.has_dim(placement.dim()))
      return InvalidArgument() << who() << " is split along dimension " << placement.dim() << " of " << type;
  }
  if (!graph.is_local() || placements.empty()) return absl::OkStatus();
  const TensorType global = GlobalType(type, placements, graph.mesh());
  if (IsAddressable(global)) return absl::OkStatus();
  return InvalidArgument() << who() << " is a part of " << global << ", which is too large to address";
}

// Checks the same for a node's results and for all values of its regions, which are placed on the outer graph's mesh.
absl::Status CheckPlaced(const Graph& graph, const Node& node) {
  for (size_t i = 0; i < node.num_results(); ++i) {
    RETURN_IF_ERROR(CheckPlaced(graph, node.type(i), node.placements(i), [&] { return node.Describe(); }));
  }
  for (const auto& [name, value] : node.attributes()) {
    const Region* region = std::get_if<Region>(&value);
    if (!region) continue;
    for (const Input& input : region->graph().inputs()) {
      RETURN_IF_ERROR(CheckPlaced(graph, input.value.type(), input.placements(),
                                  [&] { return node.Describe() + ": input %" + input.name(); }));
    }
    for (const Node& inner : region->graph().nodes()) RETURN_IF_ERROR(CheckPlaced(graph, inner));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyStructure(const Graph& graph) {
  std::unordered_set<Value, ValueHash> defined;
  std::set<std::string> names, axes;
  int64_t ranks = 1;
  for (const MeshAxis& axis : graph.mesh().axes()) {
    if (axis.size < 1) return InvalidArgument() << "mesh axis " << axis.name << " has size " << axis.size;
    if (axis.size > kMaxRanks || (ranks *= axis.size) > kMaxRanks)
      return InvalidArgument() << "the mesh " << graph.mesh().ToString() << " has more than " << kMaxRanks << " ranks";
    if (!axes.insert(axis.name).second)
      return InvalidArgument() << "two axes of the mesh " << graph.mesh().ToString() << " are named " << axis.name;
  }
  const auto define = [&](Value value) -> absl::Status {
    if (!names.insert(value.name()).second) return Internal() << "two values are named %" << value.name();
    defined.insert(value);
    return absl::OkStatus();
  };
  for (const Input& input : graph.inputs()) {
    RETURN_IF_ERROR(define(input.value));
    RETURN_IF_ERROR(
        CheckPlaced(graph, input.value.type(), input.placements(), [&] { return "input %" + input.name(); }));
  }
  for (const Node& node : graph.nodes()) {
    std::vector<TensorType> operand_types;
    for (Value operand : node.operands()) {
      if (!defined.contains(operand))
        return Internal() << node.Describe() << " uses %" << operand.name() << " before it is defined";
      operand_types.push_back(operand.type());
    }
    ASSIGN_OR_RETURN(const std::vector<TensorType> types,
                     node.op().InferTypes(operand_types, node.attributes(), graph.mesh(), graph.is_local()));
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] != node.type(i))
        return Internal() << node.Describe() << " has type " << node.type(i) << ", inferred " << types[i];
      RETURN_IF_ERROR(define(const_cast<Node&>(node).result(i)));
    }
    RETURN_IF_ERROR(CheckPlaced(graph, node));
  }
  for (const Result& result : graph.results()) {
    if (!defined.contains(result.value)) return Internal() << "result " << result.name << " is not defined";
    RETURN_IF_ERROR(
        CheckPlaced(graph, result.value.type(), result.placements, [&] { return "result " + result.name; }));
  }
  return absl::OkStatus();
}

absl::Status VerifyPlacements(const Graph& graph) {
  if (graph.is_local()) {
    ASSIGN_OR_RETURN(const Graph global, ToGlobalTypes(graph));
    return VerifyPlacements(global);
  }
  if (!graph.is_placed()) return absl::OkStatus();
  for (const Input& input : graph.inputs()) {
    if (SplitsEvenly(input.value.shape(), input.placements(), graph.mesh())) continue;
    return InvalidArgument() << "the ranks of " << graph.mesh().ToString() << " cannot share input %" << input.name()
                             << " of " << input.value.type() << " evenly";
  }
  for (const Node& node : graph.nodes()) {
    const absl::Status status = CheckPlacements(graph, node);
    if (status.ok()) continue;
    const std::string what = Downstream(graph, node);
    if (what.empty()) return status;
    return InvalidArgument() << status.message() << "; " << what << " would differ from the one-rank program";
  }
  for (const MeshAxis& axis : graph.mesh().axes()) {
    if (axis.size == 1) continue;
    for (const Result& result : graph.results())
      RETURN_IF_ERROR(CheckResult(graph, result, axis.name, result.value.placement(axis.name)));
  }
  return absl::OkStatus();
}

absl::Status Verify(const Graph& graph) {
  RETURN_IF_ERROR(VerifyStructure(graph));
  return VerifyPlacements(graph);
}

}  // namespace lockstep
