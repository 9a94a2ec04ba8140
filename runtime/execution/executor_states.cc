// The contents of an executor between runs: the results of the last run, the states and the settings.

#include <algorithm>
#include <cstring>

#include "core/local_part.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/execution/executor_call.h"
#include "runtime/hash.h"

namespace lockstep {

absl::StatusOr<ConstTensorRef> Executor::ResultOfLastRun(std::string_view name) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  RETURN_IF_ERROR(WaitForAllRuns());
  for (size_t i = 0; i < executable_.results.size(); ++i) {
    const ValueInfo& info = executable_.results[i];
    if (info.name != name) continue;
    if (calls_ == 0) return FailedPrecondition() << "result " << name << ": nothing has run yet";
    if (!has_results_) return FailedPrecondition() << "result " << name << ": the last run failed";
    if (!result_is_own_[i]) return NotFound() << "result " << name << " was written to the caller's memory";
    if (device_.is_host()) return ConstTensorRef{info.local_type, own_results_[i]};
    Tensor& copy = copied_results_[i] = Tensor(info.local_type);
    RETURN_IF_ERROR(device_.CopyToHost(copy.mutable_bytes(), own_results_[i], copy.num_bytes()));
    RETURN_IF_ERROR(device_.Synchronize());
    return ConstTensorRef{info.local_type, copy.bytes()};
  }
  return NotFound() << "there is no result " << name << "; results are " << NamesOf(executable_.results);
}

absl::StatusOr<const ValueInfo*> Executor::FindState(std::string_view name) const {
  for (const ValueInfo& info : executable_.states) {
    if (info.name == name) return &info;
  }
  return NotFound() << "there is no state " << name << "; states are " << NamesOf(executable_.states);
}

absl::Status Executor::CheckIsHere(const ValueInfo& state) const {
  if (state.is_here()) return absl::OkStatus();
  const std::string& axis = executable_.parts_along;
  return FailedPrecondition() << "state " << state.name << " is not on this rank, " << communicator_.rank()
                              << ", which is " << axis << " " << executable_.mesh.Coordinate(communicator_.rank(), axis)
                              << ": only the ranks of " << axis << " " << PlacementAlong(state.placements, axis).rank()
                              << " have it; a checkpoint has all states";
}

absl::Status Executor::AssignState(std::string_view name, const ConstTensorRef& tensor) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  RETURN_IF_ERROR(WaitForAllRuns());
  ASSIGN_OR_RETURN(const ValueInfo* info, FindState(name));
  for (const BoundState& bound : bound_) {
    if (bound.name != name || bound.writable) continue;
    return FailedPrecondition() << "state " << name << " is bound to memory that may not be written";
  }
  const auto* data = static_cast<const std::byte*>(tensor.data);
  Tensor part;
  if (!(tensor.type == info->local_type) && tensor.type == info->global_type && data != nullptr) {
    Tensor whole(tensor.type);
    std::memcpy(whole.mutable_bytes(), data, whole.num_bytes());
    part = LocalPart(whole, info->placements, executable_.mesh, communicator_.rank());
    data = part.bytes();
  } else {
    RETURN_IF_ERROR(CheckTensor("state", *info, tensor.type, data));
  }
  if (served_ != nullptr && served_->Keeps(name)) {
    RETURN_IF_ERROR(served_->Assign(name, info->local_type, data));
  } else if (!info->is_here()) {
    // Other ranks have it.
  } else if (executable_.buffers[static_cast<size_t>(info->buffer)].sharers > 1) {
    RETURN_IF_ERROR(AssignShared(*info, data));
  } else {
    std::byte* address = addresses_[static_cast<size_t>(info->buffer)];
    RETURN_IF_ERROR(device_.CopyToDevice(address, data, info->local_type.num_bytes()));
    RETURN_IF_ERROR(device_.Synchronize());
  }
  if (served_ != nullptr) served_->CopyAssigned(name);
  std::erase(unassigned_, info->name);
  evidence_->StateAssigned(static_cast<size_t>(info - executable_.states.data()));
  return absl::OkStatus();
}

// Writes between two barriers, so that no rank reads a half-written state: all ranks are in this call. The first
// barrier compares the value's hash, so that all ranks assign the same value.
absl::Status Executor::AssignShared(const ValueInfo& info, const std::byte* data) {
  const auto buffer = static_cast<size_t>(info.buffer);
  const AxisContext& axis = axes_[static_cast<size_t>(executable_.buffers[buffer].mesh_axis)];
  const std::string label = "assignment of state " + info.name + ", which ranks share";
  const auto meet = [&](uint64_t hash) -> absl::Status {
    const Communicator::Call call{label, nullptr, {.states = hash}, /*compared_only=*/true};
    return axis.communicator->Run(Collective::AllReduce(0, DType::kU8, ReduceKind::kSum), nullptr, nullptr, call);
  };
  const size_t bytes = info.local_type.num_bytes();
  RETURN_IF_ERROR(meet(HashBytes(data, bytes)));
  if (axis.coordinate == 0) std::memcpy(addresses_[buffer], data, bytes);
  return meet(0);
}

absl::Status Executor::BindState(std::string_view name, const TensorRef& memory, bool writable) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  RETURN_IF_ERROR(WaitForAllRuns());
  ASSIGN_OR_RETURN(const ValueInfo* info, FindState(name));
  RETURN_IF_ERROR(CheckIsHere(*info));
  RETURN_IF_ERROR(CheckTensor("state", *info, memory.type, memory.data));
  if (served_ != nullptr && served_->Has(name))
    return FailedPrecondition() << "state " << name << " is updated by parameter servers, and cannot be bound";
  const auto buffer = static_cast<size_t>(info->buffer);
  if (!device_.is_host()) {
    return FailedPrecondition() << "state " << name << " lies on " << device_.name()
                                << "; only states in the host's memory can be bound to the caller's";
  }
  if (executable_.buffers[buffer].sharers > 1) {
    return FailedPrecondition() << "state " << name << " is shared by ranks of this host, and cannot be bound";
  }
  const bool is_updated = std::find(updated_states_.begin(), updated_states_.end(), name) != updated_states_.end();
  if (!writable && is_updated) {
    return FailedPrecondition() << "state " << name << " is updated by @" << executable_.name
                                << ", and the memory that it would be bound to may not be written";
  }
  const auto is_own = [&](const std::unique_ptr<DeviceMemory>& own) { return own->data() == addresses_[buffer]; };
  std::erase_if(memory_, is_own);  // none if it was bound before
  auto* const begin = static_cast<std::byte*>(memory.data);
  addresses_[buffer] = begin;
  std::erase_if(bound_, [&](const BoundState& bound) { return bound.name == name; });
  bound_.push_back({info->name, begin, begin + info->local_type.num_bytes(), writable, is_updated});
  std::erase(unassigned_, info->name);
  evidence_->StateAssigned(static_cast<size_t>(info - executable_.states.data()));
  return absl::OkStatus();
}

absl::Status Executor::InvalidateStates(const absl::Status& why) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  RETURN_IF_ERROR(WaitForAllRuns());
  spoilt_ = why;
  unassigned_.clear();
  for (const ValueInfo& info : executable_.states) unassigned_.push_back(info.name);
  return absl::OkStatus();
}

absl::Status Executor::ReadState(std::string_view name, const TensorRef& tensor) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  RETURN_IF_ERROR(WaitForAllRuns());
  ASSIGN_OR_RETURN(const ValueInfo* info, FindState(name));
  RETURN_IF_ERROR(CheckTensor("state", *info, tensor.type, tensor.data));
  auto* out = static_cast<std::byte*>(tensor.data);
  if (served_ != nullptr && served_->Keeps(name)) return served_->Read(name, info->local_type, out);
  RETURN_IF_ERROR(CheckIsHere(*info));
  if (served_ != nullptr) RETURN_IF_ERROR(served_->Refresh(name, addresses_));
  const std::byte* address = addresses_[static_cast<size_t>(info->buffer)];
  RETURN_IF_ERROR(device_.CopyToHost(out, address, info->local_type.num_bytes()));
  return device_.Synchronize();
}

absl::StatusOr<std::map<int64_t, int64_t>> Executor::Staleness() {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  RETURN_IF_ERROR(WaitForAllRuns());
  if (served_ == nullptr)
    return FailedPrecondition() << "@" << executable_.name << " is not compiled with strategy=\"parameter_server\"";
  return served_->Staleness();
}

absl::StatusOr<size_t> Executor::FindSetting(std::string_view name) const {
  for (size_t i = 0; i < executable_.settings.size(); ++i) {
    if (executable_.settings[i].name == name) return i;
  }
  return NotFound() << "there is no setting " << name << "; settings are " << NamesOf(executable_.settings);
}

absl::Status Executor::Set(std::string_view name, double value) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  ASSIGN_OR_RETURN(const size_t i, FindSetting(name));
  RETURN_IF_ERROR(CheckValue(executable_.settings[i], value));
  if (settings_[i] == value) return absl::OkStatus();
  settings_[i] = value + 0.0;  // converts -0 to 0, because their bits differ
  settings_changed_ = true;
  evidence_->SettingsChanged(settings_);
  return absl::OkStatus();
}

absl::StatusOr<double> Executor::ReadSetting(std::string_view name) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  ASSIGN_OR_RETURN(const size_t i, FindSetting(name));
  return settings_[i];
}

}  // namespace lockstep
