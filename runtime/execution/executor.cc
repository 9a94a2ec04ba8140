// Runs that are started and waited for, and the handling of failed runs.

#include "runtime/execution/executor.h"

#include <algorithm>

#include "core/status.h"
#include "runtime/execution/executor_call.h"
#include "runtime/record/clock.h"

namespace lockstep {
namespace {

// Returns "call 2" or "call 2 or 3".
std::string Calls(int64_t first, int64_t last) {
  return "call " + std::to_string(first) + (last > first ? " or " + std::to_string(last) : "");
}

}  // namespace

Executor::Executor(Executable executable, Communicator* communicator, Device* device, const ExecutorOptions& options)
    : executable_(std::move(executable)), communicator_(*communicator), device_(*device), options_(options) {}

Executor::~Executor() {
  // Otherwise the device would write results later, to memory that no longer exists.
  if (calls_ > done_) (void)device_.Synchronize();
  // Destroyed before the communicators and buckets that it may use.
  executable_.combined_run.reset();
}

// --- Calls --------------------------------------------------------------------------------------------------------

absl::Status Executor::Run(std::span<const NamedInput> inputs, std::span<const NamedResult> results) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  ASSIGN_OR_RETURN(const int64_t call, Start(inputs, results));
  return Wait(call);
}

absl::StatusOr<int64_t> Executor::Start(std::span<const NamedInput> inputs, std::span<const NamedResult> results) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  (void)Finish(calls_ + 1 - kMaxStartedRuns);
  RETURN_IF_ERROR(TakeUnreportedFailure());
  RETURN_IF_ERROR(CheckSpoilt());
  const int64_t begin = RecordNow();
  absl::Status status = FindInputs(inputs);
  if (status.ok()) status = FindResults(results);
  if (!status.ok()) {
    (void)Finish(calls_);  // GiveUp would end them
    has_results_ = false;
    GiveUp(status);
    RETURN_IF_ERROR(TakeUnreportedFailure());
    return status;
  }
  StartedRun& run = StartedRunOf(++calls_);
  run.begun = 0;
  run.comparisons = run.combined = 0;
  has_results_ = true;
  records_ = recorder_ != nullptr && recorder_->is_on();
  Record(StepEvent::Kind::kCall, begin);
  status = RunAll(run);
  const int64_t end = RecordNow();
  Record(status.ok() ? StepEvent::Kind::kEnd : StepEvent::Kind::kFailed, end);
  run.total = Seconds(end - begin);
  if (status.ok()) {
    if (!RunsAhead()) (void)Finish(calls_);
  } else if (Finish(calls_ - 1).ok()) {
    Fail(status);
  }
  return calls_.load();
}

absl::Status Executor::Wait(int64_t call) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  if (call < 1 || call > calls_) {
    return InvalidArgument() << "@" << executable_.name << ": there is no call " << call << " to wait for, of "
                             << calls_.load();
  }
  (void)Finish(call);
  for (const Failure& failure : failures_) {
    if (call < failure.first || call > failure.last) continue;
    if (&failure == &failures_.back()) unreported_ = false;
    if (failure.first == failure.last) return failure.status;
    return Annotate(failure.status, "@" + executable_.name + ", " + Calls(failure.first, failure.last));
  }
  return absl::OkStatus();
}

absl::Status Executor::CheckUsable() {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  RETURN_IF_ERROR(WaitForAllRuns());
  return CheckSpoilt();
}

// --- Runs in progress ---------------------------------------------------------------------------------------------

// Returns true if Start may return before the run has ended. If hosts carry the collectives, no one else may call their
// communicator before then.
bool Executor::RunsAhead() const {
  return device_.stream() != nullptr && !options_.profile &&
         (communicator_.size() == 1 || !communicator_.needs_host_in_stream());
}

absl::Status Executor::Finish(int64_t call) {
  while (done_ < std::min(call, calls_.load())) {
    StartedRun& run = StartedRunOf(done_ + 1);
    const int64_t begin = RecordNow();
    const absl::Status status = device_.Await(*run.done);
    if (!status.ok()) {
      Fail(status);
      return status;
    }
    run.total += Seconds(RecordNow() - begin);
    Count(run);
    ++done_;
  }
  return absl::OkStatus();
}

absl::Status Executor::WaitForAllRuns() {
  (void)Finish(calls_);
  return TakeUnreportedFailure();
}

absl::Status Executor::TakeUnreportedFailure() {
  if (!unreported_) return absl::OkStatus();
  unreported_ = false;
  const Failure& failure = failures_.back();
  return Annotate(failure.status,
                  "@" + executable_.name + ", " + Calls(failure.first, failure.last) + ", which was started before");
}

void Executor::Fail(const absl::Status& cause) {
  failures_.push_back({done_ + 1, calls_.load(), cause});
  unreported_ = true;
  bool updates = false;
  for (int64_t call = done_ + 1; call <= calls_; ++call) updates = updates || StartedRunOf(call).begun > first_update_;
  if (updates) Spoil(cause);
  done_ = calls_.load();
  has_results_ = false;
  GiveUp(cause);
  if (served_ != nullptr) served_->ForgetPulls();  // states may be assigned now
}

void Executor::GiveUp(const absl::Status& cause) {
  gave_up_ = communicator_.size() > 1;
  if (gave_up_) communicator_.Abort(cause);
  // Queued work of the device may use the caller's memory. Synchronize comes after the abort, because the work may wait
  // for peers: aborted work ends, and Synchronize waits for it, although a watch has reported the failure to it.
  (void)device_.Synchronize();
}

void Executor::Spoil(const absl::Status& cause) {
  spoilt_ =
      FailedPrecondition() << "@" << executable_.name << ": " << Calls(done_ + 1, calls_)
                           << " failed when it was updating the states, which may be half updated: " << cause.message();
  unassigned_ = updated_states_;
}

absl::Status Executor::CheckInputs(std::span<const NamedInput> inputs) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  return FindInputs(inputs);
}

absl::Status Executor::CheckSpoilt() const {
  if (unassigned_.empty()) return absl::OkStatus();
  constexpr size_t kShown = 5;
  std::string names;
  for (size_t i = 0; i < std::min(kShown, unassigned_.size()); ++i) names += (i ? ", " : "") + unassigned_[i];
  if (unassigned_.size() > kShown) names += " and " + std::to_string(unassigned_.size() - kShown) + " more";
  if (gave_up_)
    return FailedPrecondition() << spoilt_.message() << "; its communicator has ended, too: restart the job";
  return FailedPrecondition() << spoilt_.message() << "; compile or load it again, or assign the states " << names;
}

absl::Status Executor::Observe(StepObserver* observer) {
  const ExclusiveCall exclusive(*this);
  RETURN_IF_ERROR(exclusive.status());
  const absl::Status waited = WaitForAllRuns();
  if (observer != nullptr) RETURN_IF_ERROR(waited);
  observer_ = observer;
  return absl::OkStatus();
}

// --- Counters -----------------------------------------------------------------------------------------------------

void Executor::Count(const StartedRun& run) {
  const std::lock_guard<std::mutex> lock(counting_);
  ++counters_.runs;
  counters_.total += run.total;
  counters_.communication += run.comparisons;
  counters_.kernels += run.combined;
  for (size_t i = 0; i < executable_.steps.size(); ++i) {
    const StepInfo& info = executable_.steps[i]->info();
    (info.collective.has_value() || info.served >= 0 ? counters_.communication : counters_.kernels) += run.steps[i];
    step_seconds_[i] += run.steps[i];
  }
}

ExecutorCounters Executor::counters() const {
  const std::lock_guard<std::mutex> lock(counting_);
  return counters_;
}

void Executor::ResetCounters() {
  const std::lock_guard<std::mutex> lock(counting_);
  counters_ = {};
  std::fill(step_seconds_.begin(), step_seconds_.end(), 0.0);
}

std::vector<StepProfile> Executor::profile() const {
  const std::lock_guard<std::mutex> lock(counting_);
  std::vector<StepProfile> profile;
  for (size_t i = 0; i < executable_.steps.size(); ++i) {
    profile.push_back({&executable_.steps[i]->info(), step_seconds_[i]});
  }
  return profile;
}

}  // namespace lockstep
