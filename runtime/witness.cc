#include "runtime/witness.h"

#include <algorithm>

#include "runtime/hash.h"

namespace lockstep {

Witness::Witness(const Executable& executable, int64_t check_every, const std::string& program)
    : executable_(executable), check_every_(check_every), program_(HashText(program)) {
  for (const MeshAxis& axis : executable.mesh.axes()) {
    has_collectives_.push_back(
        std::any_of(executable.steps.begin(), executable.steps.end(), [&](const std::unique_ptr<Step>& step) {
          return step->info().collective && step->info().collective->axis == axis.name;
        }));
  }
}

void Witness::StateAssigned() {
  ++assignments_;
  states_due_ = true;
}

absl::StatusOr<std::vector<Communicator::Evidence>> Witness::Begin(std::span<std::byte* const> addresses,
                                                                   Device& device) {
  std::vector<Communicator::Evidence> evidence(has_collectives_.size());
  for (size_t axis = 0; axis < evidence.size(); ++axis) {
    if (has_collectives_[axis]) evidence[axis] = {.program = program_, .assignments = assignments_};
  }
  if (check_every_ > 0) {
    const bool due = run_++ % check_every_ == 0;
    if (due) {
      RETURN_IF_ERROR(AddHashes(executable_.inputs, &Communicator::Evidence::inputs, addresses, device, evidence));
    }
    if (due || states_due_) {
      RETURN_IF_ERROR(AddHashes(executable_.states, &Communicator::Evidence::states, addresses, device, evidence));
    }
    states_due_ = false;
  }
  return evidence;
}

absl::Status Witness::AddHashes(const std::vector<ValueInfo>& values, uint64_t Communicator::Evidence::* field,
                                std::span<std::byte* const> addresses, Device& device,
                                std::vector<Communicator::Evidence>& evidence) const {
  const std::vector<MeshAxis>& axes = executable_.mesh.axes();
  for (const ValueInfo& value : values) {
    const auto counts = [&](size_t axis) {
      return has_collectives_[axis] && PlacementAlong(value.placements, axes[axis].name).is_replicated();
    };
    std::vector<size_t> along;
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      if (counts(axis)) along.push_back(axis);
    }
    if (along.empty()) continue;
    ASSIGN_OR_RETURN(const uint64_t hash, HashOf(value, addresses, device));
    for (size_t axis : along) evidence[axis].*field = HashCombine(evidence[axis].*field, hash);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Witness::HashOf(const ValueInfo& info, std::span<std::byte* const> addresses,
                                         Device& device) const {
  const auto buffer = static_cast<size_t>(info.buffer);
  const size_t bytes = executable_.buffers[buffer].bytes;
  if (device.is_host()) return HashBytes(addresses[buffer], bytes);
  std::vector<std::byte> copy(bytes);
  RETURN_IF_ERROR(device.CopyToHost(copy.data(), addresses[buffer], bytes));
  RETURN_IF_ERROR(device.Synchronize());
  return HashBytes(copy.data(), bytes);
}

}  // namespace lockstep
