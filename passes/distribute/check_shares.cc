#include "passes/distribute/check_shares.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lockstep::passes {
namespace {

bool IsShared(const Graph& graph, const std::string& axis) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(),
                     [&](const Input& input) { return !input.value.placement(axis).is_replicated(); });
}

absl::Status CheckInputsAreShared(const Graph& graph, const Mesh& mesh) {
  std::string inputs, first;
  for (const Input& input : graph.inputs()) {
    if (!input.is_data()) continue;
    if (first.empty()) first = input.name();
    inputs += (inputs.empty() ? "" : ", ") + input.name() + " " + input.value.type().ToString();
  }
  if (inputs.empty()) return absl::OkStatus();
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size < 2 || axis.name == kStageAxis || IsShared(graph, axis.name)) continue;
    return InvalidArgument() << "graph @" << graph.name() << " is compiled for " << axis.size << " ranks along axis "
                             << axis.name << ", and none of its inputs is split over them: " << inputs
                             << "; every rank would get the same and compute the same. Give the dimension of the "
                             << "batch when the model is loaded, by dims={\"" << first << ":0\": 128} or split={\""
                             << first << "\": 0}; or, when it is compiled, the weights that the ranks share, by "
                             << "split={\"fc1.weight\": {\"" << axis.name
                             << "\": 0}}, or replicated=True if all ranks should compute the same";
  }
  return absl::OkStatus();
}

absl::Status CheckStatesOfStages(const Graph& graph, const Mesh& mesh) {
  for (const Input& input : graph.inputs()) {
    if (!input.is_state || WithoutReplicated(input.placements()).empty()) continue;
    return InvalidArgument() << "graph @" << graph.name() << " is compiled for the stages of the mesh "
                             << mesh.ToString() << ", and state " << input.name()
                             << " is split over ranks (split=, placements=), which is not supported with stages";
  }
  return absl::OkStatus();
}

}  // namespace

Pass CheckShares(Mesh mesh, bool replicated) {
  const auto check = [mesh = std::move(mesh), replicated](Graph& graph) -> absl::StatusOr<bool> {
    if (mesh.axis_size(kStageAxis).value_or(1) > 1 && !graph.mesh().has_axis(kStageAxis))
      RETURN_IF_ERROR(CheckStatesOfStages(graph, mesh));
    if (!replicated) RETURN_IF_ERROR(CheckInputsAreShared(graph, mesh));
    return false;
  };
  return {"check-shares", check, Keeps::kEveryValue, /*needs_mesh=*/true};
}

}  // namespace lockstep::passes
