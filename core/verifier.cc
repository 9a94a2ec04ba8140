#include "core/verifier.h"

#include <set>
#include <unordered_set>
#include <vector>

#include "core/local_types.h"
#include "core/op_def.h"
#include "core/placing.h"

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

std::string Missing(const Placement& from, const Placement& to) {
  const std::string missing = MissingCollective(from, to);
  return missing.empty() ? "" : ": " + missing;
}

absl::Status CheckResult(const Graph& graph, const Result& result, std::string_view axis, const Placement& is) {
  const Placement declared = PlacementAlong(result.placements, axis);
  if (!result.is_state) {
    if (is == declared || declared.is_local()) return absl::OkStatus();
    return InvalidArgument() << "result " << result.name << " is " << is << " along axis " << axis << ", made by "
                             << result.value.node->Describe() << ", but declared " << declared << Missing(is, declared);
  }
  const Placement state = graph.FindInput(result.name)->value.placement(axis);
  if (is == state && declared == state) return absl::OkStatus();
  return InvalidArgument() << "state %" << result.name << " is " << state << " along axis " << axis
                           << ", but its next value, made by " << result.value.node->Describe() << ", is " << is
                           << Missing(is, state) << "; state %" << result.name << " would diverge between ranks";
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
    for (const auto& [axis, placement] : input.placements()) {
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
                     node.op().InferTypes(operand_types, node.attributes(), graph.mesh(), graph.is_local()));
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
