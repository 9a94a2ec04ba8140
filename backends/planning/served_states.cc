#include "backends/planning/served_states.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/op_def.h"
#include "core/placement_rules.h"

namespace lockstep {
namespace {

constexpr size_t kValue = 1;  // the position of the variable among the operands of a pull

const Node* PullOf(const Graph& graph, const std::string& key) {
  for (const Node& node : graph.nodes()) {
    if (node.Is("pull") && node.attr<std::string>("key") == key) return &node;
  }
  return nullptr;
}

// A tensor with one number, or row, for several elements of the variable cannot be split with it.
bool HasShapeOfPieces(const Shape& shape, const Shape& variable) { return shape == variable || shape.rank() == 0; }

}  // namespace

absl::Status CheckMeshOfServers(const Mesh& mesh, const std::string& axis) {
  for (const MeshAxis& each : mesh.axes()) {
    if (each.name == axis || each.size == 1) continue;
    return InvalidArgument() << "strategy=\"parameter_server\": the mesh " << mesh.ToString()
                             << " has ranks along axis " << each.name << ", but servers take gradients only along "
                             << axis;
  }
  return absl::OkStatus();
}

std::set<std::string, std::less<>> StatesOfServers(const Graph& graph) {
  std::set<std::string, std::less<>> states;
  for (const Node& node : graph.nodes()) {
    if (!node.Is("pull")) continue;
    for (size_t i = kValue + 1; i < node.operands().size(); ++i) {
      const Input* const input = graph.FindInput(node.operand(i).name());
      if (input != nullptr && input->is_state && input->value == node.operand(i)) states.insert(input->name());
    }
  }
  return states;
}

absl::StatusOr<std::vector<ServedState>> ServedStatesOf(const Graph& graph) {
  std::vector<ServedState> served;
  for (const Node& push : graph.nodes()) {
    if (!push.Is("push")) continue;
    const auto& key = push.attr<std::string>("key");
    const Node* const pull = PullOf(graph, key);
    const auto is_result = [&](const Result& result) { return result.value.node == &push; };
    if (pull == nullptr || push.users() != std::vector<Node*>{const_cast<Node*>(pull)} ||
        std::any_of(graph.results().begin(), graph.results().end(), is_result)) {
      return InvalidArgument() << push.Describe() << ": only a pull may read the result of a push";
    }
    RETURN_IF_ERROR(CheckMeshOfServers(graph.mesh(), push.attr<std::string>("axis")));
    const Input* const variable = graph.FindInput(pull->operand(kValue).name());
    if (variable == nullptr || !variable->is_state || variable->value != pull->operand(kValue) ||
        !WithoutReplicated(variable->placements()).empty()) {
      return InvalidArgument() << "strategy=\"parameter_server\": ranks have parts of %" << key
                               << ", but servers keep whole variables";
    }
    const Graph& update = pull->attr<Region>("update").graph();
    ServedState state;
    state.name = key;
    state.type = variable->value.type();
    state.synchronous = push.attr<bool>("synchronous");
    state.max_staleness = push.attr<int64_t>("max_staleness");
    state.bigarray_bound =
        IsElementwiseUpdate(update) ? push.attr<int64_t>("bigarray_bound") : std::numeric_limits<int64_t>::max();
    for (size_t i = kValue + 1; i < pull->operands().size(); ++i) {
      const Input& input = update.inputs()[i];
      const Input* const given = graph.FindInput(pull->operand(i).name());
      if (given == nullptr || given->value != pull->operand(i) || given->name() != input.name())
        return InvalidArgument() << "strategy=\"parameter_server\": ranks have parts of what the update of %" << key
                                 << " reads as %" << input.name() << ", but servers keep whole variables";
      if (input.is_state) state.kept.emplace_back(input.name(), input.value.type());
      else state.settings.push_back(input.name());
    }
    state.update = [region = pull->attr<Region>("update")](const TensorType& piece) {
      return UpdateOfPiece(region.graph(), piece);
    };
    served.push_back(std::move(state));
  }
  return served;
}

absl::StatusOr<std::string> UpdateOfPiece(const Graph& update, const TensorType& piece) {
  const Shape& whole = update.inputs()[kValue].value.shape();
  if (whole == piece.shape) return update.ToString();
  Graph of_piece(update.name());
  ValueMap map;
  for (const Input& input : update.inputs()) {
    TensorType type = input.value.type();
    if (type.shape == whole) type.shape = piece.shape;
    ASSIGN_OR_RETURN(map[input.value], of_piece.AddInputLike(input, type, {}));
  }
  for (const Node& node : update.nodes()) RETURN_IF_ERROR(of_piece.InsertCopy(node, map).status());
  for (const Result& result : update.results())
    RETURN_IF_ERROR(of_piece.AddStateResult(result.name, map.at(result.value)));
  return of_piece.ToString();
}

// Uses the placement rules, which say how an op treats operands that ranks have slices of.
bool IsElementwiseUpdate(const Graph& update) {
  const Shape& whole = update.inputs()[kValue].value.shape();
  if (whole.rank() == 0) return true;
  for (const Input& input : update.inputs()) {
    if (!HasShapeOfPieces(input.value.shape(), whole)) return false;
  }
  const MeshAxis axis{std::string(kDataAxis), 2};
  for (const Node& node : update.nodes()) {
    std::vector<Placement> operands;
    std::vector<TensorType> results;
    for (const Value operand : node.operands())
      operands.push_back(operand.shape() == whole ? Placement::Split(0) : Placement::Replicated());
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (!HasShapeOfPieces(node.type(i).shape, whole)) return false;
      results.push_back(node.type(i));
    }
    const PlacementRuleResult ruling =
        AskPlacementRule({node.op(), node.attributes(), node.operands(), results}, axis, std::nullopt, operands);
    if (ruling.decompose || !ruling.failure.empty() || ruling.required != operands) return false;
    for (size_t i = 0; i < results.size(); ++i) {
      if (ruling.results[i].is_split() != (results[i].shape == whole)) return false;
    }
  }
  return true;
}

}  // namespace lockstep
