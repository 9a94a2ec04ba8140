#include "runtime/execution/whole_state.h"

#include <algorithm>
#include <string>

#include "core/local_part.h"
#include "core/tensor.h"
#include "runtime/exclusive_use.h"

namespace lockstep {
namespace {

absl::StatusOr<const ValueInfo*> FindWhole(const Executable& executable, std::string_view name) {
  const auto state = std::find_if(executable.states.begin(), executable.states.end(),
                                  [&](const ValueInfo& info) { return info.name == name; });
  if (state == executable.states.end()) {
    return NotFound() << "@" << executable.name << " has no state " << name;
  }
  for (const auto& [axis, placement] : state->placements) {
    if (placement.is_replicated() || placement.is_split() || placement.is_at()) continue;
    return FailedPrecondition() << "state " << name << " is " << placement.ToString() << " along " << axis
                                << ": each rank has its own value, so there is no global value";
  }
  return &*state;
}

// Sends the part of rank `root` to rank 0, which writes it to its position.
absl::Status Fetch(const ValueInfo& state, int root, Executor& executor, Communicator& communicator, Tensor& part,
                   std::byte* whole) {
  if (root != 0) {
    const std::string label = "state " + state.name + " of rank " + std::to_string(root);
    RETURN_IF_ERROR(communicator.Run(Collective::Broadcast(static_cast<int64_t>(part.num_bytes()), DType::kU8, root),
                                     part.bytes(), part.mutable_bytes(), {.label = label}));
  }
  if (communicator.rank() == 0)
    PutLocalPart(part.bytes(), state.placements, executor.executable().mesh, root, state.global_type, whole);
  return absl::OkStatus();
}

}  // namespace

bool HasPart(const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  return std::all_of(mesh.axes().begin(), mesh.axes().end(), [&](const MeshAxis& axis) {
    const Placement placement = PlacementAlong(placements, axis.name);
    return !placement.is_at() || placement.is_at(mesh.Coordinate(rank, axis.name));
  });
}

absl::Status ReadWholeState(Executor& executor, Communicator& communicator, std::string_view name,
                            const TensorRef& whole) {
  const ExclusiveUse use(communicator.in_use());
  if (!use.ok()) return use.Error("the communicator of executor @" + executor.executable().name);
  ASSIGN_OR_RETURN(const ValueInfo* state, FindWhole(executor.executable(), name));
  const Mesh& mesh = executor.executable().mesh;
  const bool is_first = communicator.rank() == 0;
  LOCKSTEP_CHECK(!is_first || (whole.type == state->global_type && whole.data != nullptr)) << name;
  if (state->local_type == state->global_type && HasPart(state->placements, mesh, 0)) {
    return is_first ? executor.ReadState(name, whole) : absl::OkStatus();
  }
  Tensor part(state->local_type);
  if (state->is_here()) {
    const absl::Status status = executor.ReadState(name, {state->local_type, part.mutable_bytes()});
    if (!status.ok()) {
      communicator.Abort(status);
      return status;
    }
  }
  const int own = communicator.rank();
  Tensor arriving(state->local_type);
  for (int root = 0; root < communicator.size(); ++root) {
    if (FirstReplica(state->placements, mesh, root) != root || !HasPart(state->placements, mesh, root)) continue;
    RETURN_IF_ERROR(Fetch(*state, root, executor, communicator, root == own ? part : arriving,
                          static_cast<std::byte*>(whole.data)));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
