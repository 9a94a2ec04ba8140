#include "runtime/execution/replica_evidence.h"

#include <algorithm>
#include <bit>

#include "runtime/hash.h"

namespace lockstep {
namespace {

// Returns as many of `parts` as fit into `bytes`, and the number of omitted ones. Contains at least the beginning of
// the first.
std::string Shortened(const std::vector<std::string>& parts, size_t bytes) {
  const auto more = [&](size_t shown) {
    return shown == parts.size() ? "" : " and " + std::to_string(parts.size() - shown) + " more";
  };
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string longer = text + (i ? ", " : "") + parts[i];
    if (longer.size() + more(i + 1).size() > bytes) {
      if (i > 0) return text + more(i);
      constexpr std::string_view kCut = "...";
      const size_t rest = kCut.size() + more(1).size();
      return parts[0].substr(0, bytes - std::min(bytes, rest)) + std::string(kCut) + more(1);
    }
    text = longer;
  }
  return text;
}

}  // namespace

std::string DescribeAssigned(const std::vector<ValueInfo>& states, const std::vector<int64_t>& times, size_t bytes) {
  std::vector<std::string> assigned, others;
  bool once = true;
  for (size_t i = 0; i < states.size(); ++i) {
    if (times[i] == 0) others.push_back(states[i].name);
    else assigned.push_back(states[i].name + (times[i] > 1 ? " (" + std::to_string(times[i]) + " times)" : ""));
    once = once && times[i] <= 1;
  }
  if (assigned.empty()) return "none";
  if (!once || states.size() == 1) return Shortened(assigned, bytes);
  if (others.empty()) return "all";
  const std::string all_but = "all but ";
  if (others.size() < assigned.size()) return all_but + Shortened(others, bytes - all_but.size());
  return Shortened(assigned, bytes);
}

ReplicaEvidence::ReplicaEvidence(const Executable& executable, int64_t check_every, const std::string& program)
    : executable_(executable),
      check_every_(check_every),
      program_(HashText(program)),
      assigned_(executable.states.size(), 0) {
  std::vector<bool> updated(executable.buffers.size(), false);
  for (const std::unique_ptr<Step>& step : executable.steps) {
    for (int32_t buffer : BuffersWritten(step->info())) updated[static_cast<size_t>(buffer)] = true;
  }
  const auto& steps = executable.steps;
  // Equal on all ranks, even if their steps differ.
  const bool communicates =
      !executable.lanes.empty() || std::any_of(steps.begin(), steps.end(), [](const std::unique_ptr<Step>& step) {
        return step->info().collective.has_value();
      });
  for (const MeshAxis& axis : executable.mesh.axes()) {
    const bool updates_replicas =
        std::any_of(executable.states.begin(), executable.states.end(), [&](const ValueInfo& state) {
          return state.buffer >= 0 && updated[static_cast<size_t>(state.buffer)] &&
                 PlacementAlong(state.placements, axis.name).is_replicated();
        });
    const bool has_collectives = std::any_of(steps.begin(), steps.end(), [&](const std::unique_ptr<Step>& step) {
      const std::optional<CollectiveInfo>& collective = step->info().collective;
      return collective && collective->axis == axis.name && !collective->is_transfer;
    });
    if (axis.name == executable.parts_along) axis_of_lanes_ = compared_.size();
    compared_.push_back(axis.size > 1 && (communicates || updates_replicas));
    without_collectives_.push_back(compared_.back() && !has_collectives);
  }
}

void ReplicaEvidence::StateAssigned(size_t state) {
  ++assigned_[state];
  states_due_ = true;
}

// Names the settings that differ from their values in the program, which is equal on all ranks.
void ReplicaEvidence::SettingsChanged(std::span<const double> values) {
  settings_ = {};
  std::vector<std::string> parts;
  for (size_t i = 0; i < values.size(); ++i) {
    settings_.settings = HashCombine(settings_.settings, std::bit_cast<uint64_t>(values[i]));
    const SettingInfo& info = executable_.settings[i];
    if (values[i] != info.setting.value) parts.push_back(info.name + "=" + DoubleToString(values[i]));
  }
  if (!parts.empty()) Shortened(parts, settings_.set.size() - 1).copy(settings_.set.data(), settings_.set.size() - 1);
}

void ReplicaEvidence::AddAssignments(std::string_view axis, Communicator::Evidence& evidence) const {
  std::vector<ValueInfo> states;  // common to the ranks along the axis
  std::vector<int64_t> times;
  for (size_t i = 0; i < assigned_.size(); ++i) {
    if (PlacementAlong(executable_.states[i].placements, axis).is_at()) continue;
    states.push_back(executable_.states[i]);
    times.push_back(assigned_[i]);
  }
  if (std::all_of(times.begin(), times.end(), [](int64_t n) { return n == 0; })) return;
  for (int64_t n : times) evidence.assignments = HashCombine(evidence.assignments, static_cast<uint64_t>(n));
  const std::string names = DescribeAssigned(states, times, evidence.assigned.size() - 1);
  names.copy(evidence.assigned.data(), evidence.assigned.size() - 1);
}

absl::Status ReplicaEvidence::Begin(std::span<std::byte* const> addresses, Device& device,
                                    std::span<AxisContext> axes) {
  for (size_t axis = 0; axis < compared_.size(); ++axis) {
    if (!compared_[axis]) continue;
    axes[axis].evidence = settings_;
    axes[axis].evidence.program = program_;
    if (states_due_) AddAssignments(executable_.mesh.axes()[axis].name, axes[axis].evidence);
  }
  const bool states_due = states_due_;
  states_due_ = false;
  if (states_due) std::fill(assigned_.begin(), assigned_.end(), 0);
  if (check_every_ > 0) {
    const bool due = run_++ % check_every_ == 0;
    if (due) {
      RETURN_IF_ERROR(AddHashes(executable_.inputs, &Communicator::Evidence::inputs, addresses, device, axes));
    }
    if (due || states_due) {
      RETURN_IF_ERROR(AddHashes(executable_.states, &Communicator::Evidence::states, addresses, device, axes));
    }
  }
  for (size_t lane = compared_.size(); lane < axes.size(); ++lane) axes[lane].evidence = axes[axis_of_lanes_].evidence;
  return absl::OkStatus();
}

absl::Status ReplicaEvidence::AddHashes(const std::vector<ValueInfo>& values, uint64_t Communicator::Evidence::* field,
                                        std::span<std::byte* const> addresses, Device& device,
                                        std::span<AxisContext> axes) const {
  const std::vector<MeshAxis>& of_mesh = executable_.mesh.axes();
  for (const ValueInfo& value : values) {
    if (value.buffer < 0) continue;  // on servers or other ranks
    const auto counts = [&](size_t axis) {
      return compared_[axis] && PlacementAlong(value.placements, of_mesh[axis].name).is_replicated();
    };
    std::vector<size_t> along;
    for (size_t axis = 0; axis < compared_.size(); ++axis) {
      if (counts(axis)) along.push_back(axis);
    }
    if (along.empty()) continue;
    ASSIGN_OR_RETURN(const uint64_t hash, HashOf(value, addresses, device));
    for (size_t axis : along) axes[axis].evidence.*field = HashCombine(axes[axis].evidence.*field, hash);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ReplicaEvidence::HashOf(const ValueInfo& info, std::span<std::byte* const> addresses,
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
