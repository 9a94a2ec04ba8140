#include "core/verifier.h"

#include <set>
#include <unordered_set>
#include <vector>

#include "core/op_def.h"

namespace lockstep {
namespace {

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

std::string WhatIsMissing(const Placement& from, const Placement& to) {
  if (from.is_partial() && to.is_replicated()) return ": an all_reduce is missing";
  if (from.is_split() && to.is_replicated()) return ": an all_gather is missing";
  if (from.is_partial() && to.is_split()) return ": a reduce_scatter is missing";
  return "";
}

absl::Status CheckNode(const Graph& graph, const Node& node, std::string_view axis, const PlacementContext& rule) {
  const auto diverges = [&] {
    const std::string what = Downstream(graph, node);
    return what.empty() ? what : "; " + what + " would differ from the one-rank program";
  };
  if (!rule.failure().empty()) {
    return InvalidArgument() << node.Describe() << " cannot be placed along axis " << axis << ": " << rule.failure();
  }
  if (rule.decompose()) {
    return InvalidArgument() << node.Describe() << " mixes the values of all ranks along axis " << axis
                             << " and must be decomposed first" << diverges();
  }
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const Placement &is = rule.operand(i), &must = rule.required()[i];
    if (is == must || (is.is_replicated() && must.is_split())) continue;
    return InvalidArgument() << node.Describe() << " needs %" << node.operand(i).name() << " " << must << " along axis "
                             << axis << ", but it is " << is << WhatIsMissing(is, must) << diverges();
  }
  return absl::OkStatus();
}

absl::Status CheckResult(const Graph& graph, const Result& result, std::string_view axis, const Placement& is) {
  const Placement declared = PlacementAlong(result.placements, axis);
  if (!result.is_state) {
    if (is == declared || (is.is_replicated() && declared.is_split()) || declared.is_local()) return absl::OkStatus();
    return InvalidArgument() << "result " << result.name << " is " << is << " along axis " << axis << ", made by "
                             << result.value.node->Describe() << ", but declared " << declared
                             << WhatIsMissing(is, declared);
  }
  const Placement state = PlacementAlong(graph.FindInput(result.name)->placements, axis);
  if (is == state && declared == state) return absl::OkStatus();
  return InvalidArgument() << "state %" << result.name << " is " << state << " along axis " << axis
                           << ", but its next value, made by " << result.value.node->Describe() << ", is " << is
                           << WhatIsMissing(is, state) << "; state %" << result.name << " would diverge between ranks";
}

}  // namespace

absl::Status VerifyStructure(const Graph& graph) {
  std::unordered_set<Value, ValueHash> defined;
  std::set<std::string> names;
  for (const MeshAxis& axis : graph.mesh().axes()) {
    if (axis.size < 1) return InvalidArgument() << "mesh axis " << axis.name << " has size " << axis.size;
  }
  const auto define = [&](Value value) -> absl::Status {
    if (!names.insert(value.name()).second) return Internal() << "two values are named %" << value.name();
    defined.insert(value);
    return absl::OkStatus();
  };
  for (const Input& input : graph.inputs()) {
    RETURN_IF_ERROR(define(input.value));
    for (const auto& [axis, placement] : input.placements) {
      if (!graph.mesh().empty() && !graph.mesh().has_axis(axis)) {
        return InvalidArgument() << "input %" << input.name() << " is placed along axis " << axis
                                 << ", which is not in the mesh " << graph.mesh().ToString();
      }
      if (placement.is_split() && !input.value.shape().has_dim(placement.dim())) {
        return InvalidArgument() << "input %" << input.name() << " is split along dimension " << placement.dim()
                                 << " of " << input.value.type();
      }
    }
  }
  for (const Node& node : graph.nodes()) {
    std::vector<TensorType> operand_types;
    for (Value operand : node.operands()) {
      if (!defined.contains(operand))
        return Internal() << node.Describe() << " uses %" << operand.name() << " before it is defined";
      operand_types.push_back(operand.type());
    }
    ASSIGN_OR_RETURN(const std::vector<TensorType> types,
                     node.op().InferTypes(operand_types, node.attributes(), graph.mesh()));
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] != node.type(i))
        return Internal() << node.Describe() << " has type " << node.type(i) << ", inferred " << types[i];
      RETURN_IF_ERROR(define(const_cast<Node&>(node).result(i)));
    }
  }
  for (const Result& result : graph.results()) {
    if (!defined.contains(result.value)) return Internal() << "result " << result.name << " is not defined";
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unordered_map<Value, Placement, ValueHash>> InferPlacements(const Graph& graph,
                                                                                std::string_view axis) {
  ASSIGN_OR_RETURN(const int64_t size, graph.mesh().axis_size(axis));
  std::unordered_map<Value, Placement, ValueHash> placements;
  for (const Input& input : graph.inputs()) placements[input.value] = PlacementAlong(input.placements, axis);
  for (const Node& node : graph.nodes()) {
    std::vector<Placement> operands;
    for (Value operand : node.operands()) operands.push_back(placements.at(operand));
    PlacementContext rule(node, operands, axis, size, std::nullopt, /*types_are_local=*/true);
    node.op().place()(rule);
    RETURN_IF_ERROR(CheckNode(graph, node, axis, rule));
    for (size_t i = 0; i < node.num_results(); ++i) placements[const_cast<Node&>(node).result(i)] = rule.results()[i];
  }
  return placements;
}

absl::Status VerifyPlacements(const Graph& graph) {
  for (const MeshAxis& axis : graph.mesh().axes()) {
    ASSIGN_OR_RETURN(const auto placements, InferPlacements(graph, axis.name));
    for (const Result& result : graph.results()) {
      RETURN_IF_ERROR(CheckResult(graph, result, axis.name, placements.at(result.value)));
    }
  }
  return absl::OkStatus();
}

absl::Status Verify(const Graph& graph) {
  RETURN_IF_ERROR(VerifyStructure(graph));
  return VerifyPlacements(graph);
}

}  // namespace lockstep
