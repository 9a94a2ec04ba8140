#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/local_part.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/agreement.h"
#include "runtime/exclusive_use.h"

namespace lockstep {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <typename Range>
std::string NamesOf(const Range& values) {
  std::string names;
  for (const auto& value : values) names += (names.empty() ? "" : ", ") + std::string(value.name);
  return names.empty() ? "none" : names;
}

absl::Status CheckTensor(const char* what, const ValueInfo& info, const TensorType& type, const void* data) {
  if (!(type == info.local_type)) {
    ErrorStream error = InvalidArgument() << what << " " << info.name << ": expected " << info.local_type;
    const bool is_share = info.local_type != info.global_type;
    if (is_share) error << ", this rank's share of " << info.global_type;
    error << ", found " << type;
    if (is_share && type == info.global_type) error << ", which is the whole of it";
    return error;
  }
  if (data == nullptr && info.local_type.num_bytes() > 0) {
    return InvalidArgument() << what << " " << info.name << ": the pointer is null";
  }
  return absl::OkStatus();
}

}  // namespace

// Holds the executor, and its communicator unless there is nobody to talk to, for one call.
class Executor::CallAlone {
 public:
  explicit CallAlone(Executor& executor)
      : use_(executor.in_use_),
        communicator_use_(executor.communicator_.size() > 1 ? executor.communicator_.in_use() : unshared_) {
    const std::string& name = executor.executable_.name;
    if (!use_.ok()) status_ = use_.Error("executor @" + name);
    else if (!communicator_use_.ok()) status_ = communicator_use_.Error("the communicator of executor @" + name);
  }
  const absl::Status& status() const { return status_; }

 private:
  ExclusiveUse::Flag unshared_;
  const ExclusiveUse use_, communicator_use_;
  absl::Status status_;
};

Executor::Executor(Executable executable, Communicator* communicator, Device* device, const ExecutorOptions& options)
    : executable_(std::move(executable)), communicator_(*communicator), device_(*device), options_(options) {}

Executor::~Executor() = default;

absl::Status Executor::BindInputs(std::span<const NamedInput> inputs) {
  for (const ValueInfo& info : executable_.inputs) {
    const auto named = [&](const NamedInput& input) { return input.name == info.name; };
    const auto it = std::find_if(inputs.begin(), inputs.end(), named);
    if (it == inputs.end()) {
      return InvalidArgument() << "input " << info.name << " is missing; given are " << NamesOf(inputs);
    }
    if (std::find_if(it + 1, inputs.end(), named) != inputs.end()) {
      return InvalidArgument() << "input " << info.name << " is given twice";
    }
    RETURN_IF_ERROR(CheckTensor("input", info, it->tensor.type, it->tensor.data));
    const auto* data = static_cast<const std::byte*>(it->tensor.data);
    std::byte*& address = addresses_[static_cast<size_t>(info.buffer)];
    if (device_.is_host()) {
      address = const_cast<std::byte*>(data);  // no step writes into an input's buffer
    } else {
      RETURN_IF_ERROR(device_.CopyToDevice(address, data, info.local_type.num_bytes()));
    }
  }
  if (inputs.size() == executable_.inputs.size()) return absl::OkStatus();
  for (const NamedInput& input : inputs) {
    const auto known = [&](const ValueInfo& info) { return info.name == input.name; };
    if (std::none_of(executable_.inputs.begin(), executable_.inputs.end(), known)) {
      return InvalidArgument() << "there is no input " << input.name << "; inputs are " << NamesOf(executable_.inputs);
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::BindResults(std::span<const NamedResult> results) {
  for (const NamedResult& result : results) {
    const auto known = [&](const ValueInfo& info) { return info.name == result.name; };
    const auto it = std::find_if(executable_.results.begin(), executable_.results.end(), known);
    if (it == executable_.results.end()) {
      return InvalidArgument() << "there is no result " << result.name << "; results are "
                               << NamesOf(executable_.results);
    }
    RETURN_IF_ERROR(CheckTensor("result", *it, result.tensor.type, result.tensor.data));
  }
  for (size_t i = 0; i < executable_.results.size(); ++i) {
    const ValueInfo& info = executable_.results[i];
    const auto named = [&](const NamedResult& result) { return result.name == info.name; };
    const auto it = std::find_if(results.begin(), results.end(), named);
    std::byte*& address = addresses_[static_cast<size_t>(info.buffer)];
    result_is_own_[i] = it == results.end();
    if (it != results.end() && device_.is_host()) {
      address = static_cast<std::byte*>(it->tensor.data);
      continue;
    }
    if (own_results_[i] == nullptr) {
      ASSIGN_OR_RETURN(auto memory, device_.Allocate(info.local_type.num_bytes(), "result " + info.name));
      own_results_[i] = memory->data();
      memory_.push_back(std::move(memory));
    }
    address = own_results_[i];
  }
  return absl::OkStatus();
}

absl::Status Executor::CopyResultsToHost(std::span<const NamedResult> results) {
  if (device_.is_host()) return absl::OkStatus();
  for (const ValueInfo& info : executable_.results) {
    for (const NamedResult& result : results) {
      if (result.name != info.name) continue;
      RETURN_IF_ERROR(device_.CopyToHost(static_cast<std::byte*>(result.tensor.data),
                                         addresses_[static_cast<size_t>(info.buffer)], info.local_type.num_bytes()));
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::RunSteps(size_t& begun) {
  StepContext context(addresses_, device_, axes_, tickets_);
  double before = Now();
  for (size_t i = 0; i <= executable_.steps.size(); ++i) {
    if (i == first_update_) {  // ranks that disagree have their states as they were
      RETURN_IF_ERROR(WaitForWitnesses());
      const double after = Now();
      witness_seconds_ = after - before;
      before = after;
    }
    if (i == executable_.steps.size()) break;
    Step& step = *executable_.steps[i];
    begun = i + 1;
    const absl::Status status = step.Run(context);
    if (!status.ok()) return Annotate(status, step.info().ToString());
    const double after = Now();
    seconds_of_run_[i] = after - before;
    before = after;
  }
  return absl::OkStatus();
}

absl::Status Executor::StartWitnesses() {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (!witness_->quiet()[i]) continue;
    const std::string label = "what ranks have in common along " + executable_.mesh.axes()[i].name;
    ASSIGN_OR_RETURN(axes_[i].witness,
                     axes_[i].communicator->StartAllReduce(nullptr, nullptr, 0, DType::kU8, ReduceKind::kSum,
                                                           {label, device_.stream(), axes_[i].evidence}));
  }
  return absl::OkStatus();
}

absl::Status Executor::WaitForWitnesses() {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (!witness_->quiet()[i]) continue;
    RETURN_IF_ERROR(axes_[i].communicator->Wait(axes_[i].witness, device_.stream()));
  }
  return absl::OkStatus();
}

absl::Status Executor::RunAll(std::span<const NamedInput> inputs, std::span<const NamedResult> results, size_t& begun) {
  RETURN_IF_ERROR(BindInputs(inputs));
  RETURN_IF_ERROR(BindResults(results));
  ASSIGN_OR_RETURN(const std::vector<Communicator::Evidence> evidence, witness_->Begin(addresses_, device_));
  for (size_t i = 0; i < axes_.size(); ++i) axes_[i].evidence = evidence[i];
  RETURN_IF_ERROR(StartWitnesses());
  RETURN_IF_ERROR(RunSteps(begun));
  RETURN_IF_ERROR(CopyResultsToHost(results));
  return device_.Synchronize();
}

absl::Status Executor::Run(std::span<const NamedInput> inputs, std::span<const NamedResult> results) {
  const CallAlone alone(*this);
  RETURN_IF_ERROR(alone.status());
  RETURN_IF_ERROR(CheckUsable());
  const double begin = Now();
  ++calls_;
  size_t begun = 0;  // steps
  const absl::Status status = RunAll(inputs, results, begun);
  has_results_ = status.ok();
  if (!status.ok()) {
    if (begun > first_update_) Spoil(status);
    GiveUp(status);
    return status;
  }
  Count(Now() - begin);
  return absl::OkStatus();
}

void Executor::Count(double total) {
  ++counters_.runs;
  counters_.total += total;
  counters_.communication += witness_seconds_;
  for (size_t i = 0; i < executable_.steps.size(); ++i) {
    const bool is_collective = executable_.steps[i]->info().collective.has_value();
    (is_collective ? counters_.communication : counters_.kernels) += seconds_of_run_[i];
    step_seconds_[i] += seconds_of_run_[i];
  }
}

void Executor::GiveUp(const absl::Status& cause) {
  if (communicator_.size() > 1) communicator_.Abort(cause);
  // What the device's queue still holds may use memory of the caller. After the abort, as it may wait for peers.
  (void)device_.Synchronize();
}

void Executor::Spoil(const absl::Status& cause) {
  spoilt_ =
      FailedPrecondition() << "@" << executable_.name << ": call " << calls_
                           << " failed when it was updating the states, which may be half updated: " << cause.message();
  unassigned_ = updated_states_;
}

absl::Status Executor::CheckUsable() const {
  if (unassigned_.empty()) return absl::OkStatus();
  constexpr size_t kShown = 5;
  std::string names;
  for (size_t i = 0; i < std::min(kShown, unassigned_.size()); ++i) names += (i ? ", " : "") + unassigned_[i];
  if (unassigned_.size() > kShown) names += " and " + std::to_string(unassigned_.size() - kShown) + " more";
  return FailedPrecondition() << spoilt_.message() << "; compile or load it anew, or assign the states " << names;
}

absl::StatusOr<ConstTensorRef> Executor::ResultOfLastRun(std::string_view name) {
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

absl::Status Executor::AssignState(std::string_view name, const ConstTensorRef& tensor) {
  const CallAlone alone(*this);
  RETURN_IF_ERROR(alone.status());
  ASSIGN_OR_RETURN(const ValueInfo* info, FindState(name));
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
  std::byte* address = addresses_[static_cast<size_t>(info->buffer)];
  RETURN_IF_ERROR(device_.CopyToDevice(address, data, info->local_type.num_bytes()));
  RETURN_IF_ERROR(device_.Synchronize());
  std::erase(unassigned_, info->name);
  witness_->StateAssigned(static_cast<size_t>(info - executable_.states.data()));
  return absl::OkStatus();
}

absl::Status Executor::ReadState(std::string_view name, const TensorRef& tensor) {
  const CallAlone alone(*this);
  RETURN_IF_ERROR(alone.status());
  ASSIGN_OR_RETURN(const ValueInfo* info, FindState(name));
  RETURN_IF_ERROR(CheckTensor("state", *info, tensor.type, tensor.data));
  auto* out = static_cast<std::byte*>(tensor.data);
  const std::byte* address = addresses_[static_cast<size_t>(info->buffer)];
  RETURN_IF_ERROR(device_.CopyToHost(out, address, info->local_type.num_bytes()));
  return device_.Synchronize();
}

void Executor::ResetCounters() {
  counters_ = {};
  std::fill(step_seconds_.begin(), step_seconds_.end(), 0.0);
}

std::vector<StepProfile> Executor::profile() const {
  std::vector<StepProfile> profile;
  for (size_t i = 0; i < executable_.steps.size(); ++i) {
    profile.push_back({&executable_.steps[i]->info(), step_seconds_[i]});
  }
  return profile;
}

}  // namespace lockstep
