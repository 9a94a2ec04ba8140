// One run: from the caller's inputs to steps that have run, or are queued, and results that will be copied to the host.

#include <algorithm>
#include <cstring>

#include "core/status.h"
#include "runtime/execution/executor_call.h"
#include "runtime/record/clock.h"

namespace lockstep {

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

// --- Arguments of the caller --------------------------------------------------------------------------------------

absl::Status Executor::FindInputs(std::span<const NamedInput> inputs) {
  for (size_t i = 0; i < executable_.inputs.size(); ++i) {
    const ValueInfo& info = executable_.inputs[i];
    const auto named = [&](const NamedInput& input) { return input.name == info.name; };
    const auto it = std::find_if(inputs.begin(), inputs.end(), named);
    if (it == inputs.end()) {
      return InvalidArgument() << "input " << info.name << " is missing; given are " << NamesOf(inputs);
    }
    if (std::find_if(it + 1, inputs.end(), named) != inputs.end()) {
      return InvalidArgument() << "input " << info.name << " is given twice";
    }
    RETURN_IF_ERROR(CheckTensor("input", info, it->tensor.type, it->tensor.data));
    given_inputs_[i] = static_cast<const std::byte*>(it->tensor.data);
    for (const BoundState& bound : bound_) {
      if (!bound.updated || given_inputs_[i] >= bound.end) continue;
      if (given_inputs_[i] + info.local_type.num_bytes() <= bound.begin) continue;
      return InvalidArgument() << "input " << info.name << " lies in the memory that state " << bound.name
                               << " is bound to, which the steps write";
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

absl::Status Executor::FindResults(std::span<const NamedResult> results) {
  std::fill(given_results_.begin(), given_results_.end(), nullptr);
  std::fill(result_is_own_.begin(), result_is_own_.end(), true);
  for (const NamedResult& result : results) {
    const auto known = [&](const ValueInfo& info) { return info.name == result.name; };
    const auto it = std::find_if(executable_.results.begin(), executable_.results.end(), known);
    if (it == executable_.results.end()) {
      return InvalidArgument() << "there is no result " << result.name << "; results are "
                               << NamesOf(executable_.results);
    }
    RETURN_IF_ERROR(CheckTensor("result", *it, result.tensor.type, result.tensor.data));
    const auto i = static_cast<size_t>(it - executable_.results.begin());
    if (!result_is_own_[i]) return InvalidArgument() << "result " << result.name << " is given memory twice";
    result_is_own_[i] = false;
    given_results_[i] = static_cast<std::byte*>(result.tensor.data);
  }
  return absl::OkStatus();
}

// --- Inputs and results -------------------------------------------------------------------------------------------

// On a device, inputs are copied from the host while the previous run computes, then to the addresses that the steps
// use in all runs.
absl::Status Executor::BindInputs() {
  const std::vector<ValueInfo>& inputs = executable_.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::byte*& address = addresses_[static_cast<size_t>(inputs[i].buffer)];
    if (device_.is_host()) {
      address = const_cast<std::byte*>(given_inputs_[i]);  // no step writes to an input's buffer
    } else {
      RETURN_IF_ERROR(device_.CopyAhead(ahead_[i], given_inputs_[i], inputs[i].local_type.num_bytes(), *taken_));
    }
  }
  if (device_.is_host()) return absl::OkStatus();
  for (size_t i = 0; i < inputs.size(); ++i) {
    RETURN_IF_ERROR(device_.CopyWithin(addresses_[static_cast<size_t>(inputs[i].buffer)], ahead_[i],
                                       inputs[i].local_type.num_bytes()));
  }
  return device_.Record(*taken_);
}

// Copies changed settings. On a device, before the copies of inputs, whose event covers both.
absl::Status Executor::BindSettings() {
  if (settings_.empty() || !settings_changed_) return absl::OkStatus();
  std::byte* const address = addresses_[static_cast<size_t>(executable_.settings_buffer)];
  const size_t bytes = settings_.size() * sizeof(double);
  const auto* const values = reinterpret_cast<const std::byte*>(settings_.data());
  if (device_.is_host()) {
    std::memcpy(address, values, bytes);
  } else {
    RETURN_IF_ERROR(device_.CopyAhead(settings_ahead_, values, bytes, *taken_));
    RETURN_IF_ERROR(device_.CopyWithin(address, settings_ahead_, bytes));
  }
  settings_changed_ = false;
  return absl::OkStatus();
}

// On a device, results have their addresses in the executor's memory since Load.
absl::Status Executor::BindResults() {
  for (size_t i = 0; i < executable_.results.size() && device_.is_host(); ++i) {
    const ValueInfo& info = executable_.results[i];
    std::byte*& address = addresses_[static_cast<size_t>(info.buffer)];
    if (!result_is_own_[i]) {
      address = given_results_[i];
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

absl::Status Executor::CopyResultsToHost() {
  for (size_t i = 0; i < executable_.results.size() && !device_.is_host(); ++i) {
    if (result_is_own_[i]) continue;
    RETURN_IF_ERROR(
        device_.CopyToHost(given_results_[i], own_results_[i], executable_.results[i].local_type.num_bytes()));
  }
  return absl::OkStatus();
}

// --- Steps --------------------------------------------------------------------------------------------------------

absl::Status Executor::StartComparisons() {
  for (size_t i = 0; i < evidence_->without_collectives().size(); ++i) {
    if (!evidence_->without_collectives()[i]) continue;
    const std::string label = "comparison of ranks along " + executable_.mesh.axes()[i].name;
    ASSIGN_OR_RETURN(axes_[i].comparison,
                     axes_[i].communicator->Start(Collective::AllReduce(0, DType::kU8, ReduceKind::kSum), nullptr,
                                                  nullptr, {label, device_.stream(), axes_[i].evidence}));
  }
  return absl::OkStatus();
}

absl::Status Executor::WaitForComparisons() {
  for (size_t i = 0; i < evidence_->without_collectives().size(); ++i) {
    if (!evidence_->without_collectives()[i]) continue;
    Record(StepEvent::Kind::kCompare, RecordNow());
    RETURN_IF_ERROR(axes_[i].communicator->Wait(axes_[i].comparison, device_.stream()));
  }
  return absl::OkStatus();
}

absl::Status Executor::RunCombined(StepContext& context, StartedRun& run) {
  const int64_t before = RecordNow();
  RETURN_IF_ERROR(WaitForComparisons());
  const int64_t between = RecordNow();
  run.comparisons = Seconds(between - before);
  Record(StepEvent::Kind::kStep, between, StepEvent::kAllSteps);
  run.begun = executable_.steps.size() + 1;
  RETURN_IF_ERROR(executable_.combined_run->Run(executable_.steps, context));
  run.combined = Seconds(RecordNow() - between);
  return absl::OkStatus();
}

// Omits value names for a part of a program, because passes have made many copies of each value.
std::string Executor::NameInMessages(const StepInfo& step) const {
  constexpr size_t kMostNames = 3;  // a loop over micro-batches computes the gradients of all states
  if (roles_.empty()) return step.ToString(kMostNames);
  const bool has_names = step.source.empty() || step.collective.has_value();
  return roles_[static_cast<size_t>(communicator_.rank())] + " of @" + executable_.name + ", " +
         (has_names ? step.ToString(kMostNames) : step.name + ", at " + step.source);
}

absl::Status Executor::RunSteps(StartedRun& run) {
  StepContext context(addresses_, device_, axes_, tickets_, served_.get(), settings_);
  const bool one_by_one = options_.profile || observer_ != nullptr;
  if (executable_.combined_run != nullptr && !one_by_one) return RunCombined(context, run);
  const bool each = one_by_one && device_.stream() != nullptr;  // waits for each step
  if (each) RETURN_IF_ERROR(device_.Synchronize());
  int64_t before = RecordNow();
  for (size_t i = 0; i <= executable_.steps.size(); ++i) {
    if (i == first_update_) {  // if ranks disagree, their states are still unchanged
      RETURN_IF_ERROR(WaitForComparisons());
      const int64_t after = RecordNow();
      run.comparisons = Seconds(after - before);
      before = after;
    }
    if (i == executable_.steps.size()) break;
    Step& step = *executable_.steps[i];
    run.begun = i + 1;
    Record(StepEvent::Kind::kStep, before, static_cast<int32_t>(i));
    absl::Status status = observer_ == nullptr ? absl::OkStatus() : observer_->Before(step.info(), i, context);
    if (status.ok()) status = step.Run(context);
    if (status.ok() && each) status = device_.Synchronize();
    if (status.ok() && observer_ != nullptr) status = observer_->After(step.info(), i, context);
    if (!status.ok()) return Annotate(status, NameInMessages(step.info()));
    const int64_t after = RecordNow();
    run.steps[i] = Seconds(after - before);
    before = after;
  }
  return absl::OkStatus();
}

absl::Status Executor::RunAll(StartedRun& run) {
  if (recorder_ != nullptr) recorder_->SetRoles(recorded_as_, roles_);
  RETURN_IF_ERROR(BindSettings());
  RETURN_IF_ERROR(BindInputs());
  RETURN_IF_ERROR(BindResults());
  if (served_ != nullptr) RETURN_IF_ERROR(served_->Begin(settings_, addresses_));
  RETURN_IF_ERROR(evidence_->Begin(addresses_, device_, axes_));
  RETURN_IF_ERROR(StartComparisons());
  RETURN_IF_ERROR(RunSteps(run));
  RETURN_IF_ERROR(CopyResultsToHost());
  return device_.Record(*run.done);
}

}  // namespace lockstep
