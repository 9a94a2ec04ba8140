// Runs an executable: holds its buffers and its states, and borrows the communicator. One thread at a time uses an
// Executor. With several ranks in a process, each has its own, on its own thread. If a call that returns a status
// overlaps with such a call in another thread, of the same executor or of any executor with the same communicator of
// several ranks, it returns FailedPrecondition and has no other effect.
//
//   ASSIGN_OR_RETURN(auto executor, Executor::Load(std::move(executable), communicator, device));
//   RETURN_IF_ERROR(executor->AssignState("fc1.weight", {type, data}));
//   const NamedInput inputs[] = {{"image", {image_type, image}}, {"label", {label_type, label}}};
//   const NamedResult results[] = {{"loss", {scalar, &loss}}};
//   RETURN_IF_ERROR(executor->Run(inputs, results));
//
// On a device with a queue, the caller need not wait for a run at once. Then the inputs of the next run are copied, and
// its steps are queued, while the present one computes. At most two runs are in progress.
//
//   ASSIGN_OR_RETURN(const int64_t first, executor->Start(inputs_of_first, results_of_first));
//   ASSIGN_OR_RETURN(const int64_t second, executor->Start(inputs_of_second, results_of_second));
// its results are complete
//
// An error of such a run is detected by the first call that waits for it. The next call that returns a status (except a
// Wait for a run that succeeded) returns it once, as an error that names the calls to which it may belong. Each Wait
// for one of these calls also returns it. All runs in progress have then failed, and memory of the caller is no longer
// touched. The same applies on the host, where a run has ended when Start returns.
//
// If a call in which all ranks take part (Load, Start, Run) fails on one rank, that rank aborts the communicator, so
// that its peers get an error that names it instead of waiting. A failed communicator remains unusable. With one rank
// there are no peers.
//
// The collectives of a Run detect replicas that differ. They compare the evidence of ranks
// (runtime/execution/replica_evidence.h): the program, the states that were assigned, the settings, and, every
// ExecutorOptions::check_every runs, the contents of replicated inputs and states. The error names two ranks and the
// difference. An axis without collectives of the program gets one for this purpose. A program without any collective
// that updates no replicated state, such as an evaluation, compares nothing: each rank may run it as often as it likes.
//
// A run that fails before the first step that may write a state leaves the states unchanged and may be repeated. A run
// that fails there or later may have updated only some states. The executor is then *spoiled*: every Run and Start
// fails with the cause until each state that the steps update has been assigned again.
//
// States on parameter servers (runtime/execution/served_states.h) are read and assigned like others, by all workers
// alike.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/exclusive_use.h"
#include "runtime/execution/executable.h"
#include "runtime/execution/replica_evidence.h"
#include "runtime/execution/served_states.h"
#include "runtime/record/recorder.h"

namespace lockstep {

// Row-major elements in host memory, owned by the executor's caller.
struct ConstTensorRef {
  TensorType type;
  const void* data = nullptr;
};
struct TensorRef {
  TensorType type;
  void* data = nullptr;
};
struct NamedInput {
  std::string_view name;
  ConstTensorRef tensor;
};
struct NamedResult {
  std::string_view name;
  TensorRef tensor;
};

struct ExecutorOptions {
  // In the first run and every so many runs after it, ranks compare hashes of replicated inputs and states; states also
  // in the run after an assignment. 0: never. Equal on all ranks.
  int64_t check_every = 512;
  // Runs the steps one by one to measure each, even if the backend can run them at once (Executable::combined_run). On
  // a device with a queue, waits for each step, and the run has ended when Start returns. Equal on all ranks.
  bool profile = false;
  // For a program whose states servers update (Executable::served): this rank's client of the servers, which must
  // outlive the executor.
  ServerClient* servers = nullptr;
};

// Seconds of the caller's thread since Load or ResetCounters, in runs that were waited for and succeeded. A failed run
// is not counted, because it may have stopped anywhere or waited for a peer until the timeout. If steps are queued,
// kernels and communication are the times of queueing, unless ExecutorOptions::profile is set.
struct ExecutorCounters {
  int64_t runs = 0;
  double total = 0;          // in Start and in waiting for the run, without the device's work between them
  double kernels = 0;        // in kernels and copies, or in running all steps at once
  double communication = 0;  // in starts and waits of collectives
  // Checks, copies of inputs and results, and the loop over steps; if steps are queued, also the wait for the device.
  double outside_kernels() const { return total - kernels - communication; }
};

struct StepProfile {
  const StepInfo* step;
  // Over the counted runs; 0 if all steps run at once. On a device with a queue, if ExecutorOptions::profile is set:
  // from the end of the previous step until the end of this one, with its launch and the wait.
  double seconds = 0;
};

class Executor {
 public:
  // Loads an executable. All ranks call it together. `communicator` must have as many ranks as the executable's mesh;
  // rank r has the coordinates of Mesh::Coordinate. It and `device` must outlive the executor. The communicator is
  // split into one for each axis of more than one rank, unless that axis is the whole mesh. Between hosts, an axis gets
  // a further communicator for urgent collectives if these would queue behind others. Lanes between program parts also
  // have their own. Fails if the ranks' numbers of threads, libraries, processors, certificates or programs differ,
  // with the first different line in both versions, or if parts do not fit together (part_order.h). The communicator
  // remains usable then, because all ranks have the same error. A later error of one rank, such as one of the backend's
  // preparation (Executable::prepare), aborts the communicator.
  static absl::StatusOr<std::unique_ptr<Executor>> Load(Executable executable, Communicator* communicator,
                                                        Device* device, const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Executable& executable() const { return executable_; }
  // Returns the buckets that are not registered with the library that moves data between GPUs, and why.
  const std::vector<std::pair<std::string, std::string>>& unregistered() const { return unregistered_; }

  // Calls Start and then Wait.
  absl::Status Run(std::span<const NamedInput> inputs, std::span<const NamedResult> results);

  // Starts to run all steps once. Returns the number of the call, from 1. `inputs` must name every input once, with
  // local types. Results in `results` are written to the caller's memory, the others to the executor's. When it
  // returns, the inputs are no longer needed: on the host they are read in place and the run has ended; on other
  // devices they have been copied. The memory of results must live until the run has been waited for, a call has
  // returned its error, or the executor is destroyed, which waits for it.
  //
  // Waits for the run before the last one if it is in progress. Waits for all runs if the contents of replicas are
  // compared (check_every), if ExecutorOptions::profile is set, or if ranks communicate through their hosts. Between a
  // Start and the end of its run, no other executor of the same ranks may run on the same GPUs.
  //
  // InvalidArgument if inputs or results do not fit: nothing has started, and the call has no number.
  // FailedPrecondition if an earlier call has spoiled the executor: the message names the call, the reason, and the
  // states that must be assigned.
  absl::StatusOr<int64_t> Start(std::span<const NamedInput> inputs, std::span<const NamedResult> results);

  // Returns when the run with this number is done and its results are complete, with its error if it failed, also if
  // called again. InvalidArgument if there is no such call.
  absl::Status Wait(int64_t call);

  // Returns true if the run was started and no call has waited for its end. Any thread.
  bool IsUnderWay(int64_t call) const { return call > done_ && call <= calls_; }

  // Returns OK, or the error that Run would return because inputs do not fit. Nothing else happens.
  absl::Status CheckInputs(std::span<const NamedInput> inputs);

  // Returns OK, or the error of an earlier call that Run would return. Call it before saving states to a file. Like all
  // following functions except the counters, it waits for runs.
  absl::Status CheckUsable();

  // Returns a result of the last run that was not given memory, valid until the next run. NotFound if there is none,
  // FailedPrecondition if that run failed.
  absl::StatusOr<ConstTensorRef> ResultOfLastRun(std::string_view name);

  // Assigns a state by name, on all ranks alike. If only some ranks have assigned it, the next Run returns an error. If
  // only other ranks have the state (ValueInfo::is_here), assigning it here has no effect, and reading it returns
  // FailedPrecondition with those ranks. All states are initially zero. The states of a spoiled executor can be read.
  // `tensor.type` must be the local type, or, for assigning, the global type, of which this rank takes its part. States
  // that ranks share (Buffer::sharers) are assigned by these ranks together, in the same order: the call waits for the
  // others, and fails if their values differ.
  absl::Status AssignState(std::string_view name, const ConstTensorRef& tensor);

  // Moves the state to the caller's memory, with its contents there, and frees the executor's memory of it. Runs update
  // the caller's memory. Values that the caller writes there between two runs are used by the next run, as an
  // assignment that other ranks do not see. `memory`, with the local type, must live as long as the executor, or until
  // the state is bound to other memory. No one else may write it during a run, and no result or other state may lie
  // there. If it is not `writable`, AssignState fails.
  //
  // FailedPrecondition on a device, for a shared state, for a state of other ranks or of servers, and for memory that
  // is not writable if a step updates the state.
  absl::Status BindState(std::string_view name, const TensorRef& memory, bool writable);

  // Marks all states as invalid: runs fail with `why` until all states have been assigned. For callers that assign
  // several states one after the other and may fail between two.
  absl::Status InvalidateStates(const absl::Status& why);
  absl::Status ReadState(std::string_view name, const TensorRef& tensor);

  // Sets the value of a setting for later runs. Runs in progress keep their values. The initial values are those of the
  // program. All ranks must set the same value: if they compare evidence, the next run fails on ranks whose values
  // differ. An error names the setting and its range.
  absl::Status Set(std::string_view name, double value);
  absl::StatusOr<double> ReadSetting(std::string_view name);

  // Returns the staleness of gradients (ServedStates::Staleness). FailedPrecondition if servers have no states of the
  // program.
  absl::StatusOr<std::map<int64_t, int64_t>> Staleness();

  // Sets the observer of later runs, or none: null. With one, steps run one by one, as with ExecutorOptions::profile.
  // It must live until it is replaced. Waits for runs.
  absl::Status Observe(StepObserver* observer);

  // Returns the names of the states that the steps write.
  const std::vector<std::string>& updated_states() const { return updated_states_; }

  // Any thread may call these three, also during a run: a run is counted completely or not at all.
  ExecutorCounters counters() const;
  void ResetCounters();
  std::vector<StepProfile> profile() const;  // in order of the steps

  // The number of the program in the communicator's recorder.
  uint16_t recorded_as() const { return recorded_as_; }

 private:
  class ExclusiveCall;
  // One of the runs that may be in progress.
  struct StartedRun {
    std::unique_ptr<DeviceEvent> done;
    size_t begun = 0;  // the number of steps that have begun
    // Seconds of the caller's thread.
    double total = 0, comparisons = 0, combined = 0;
    std::vector<double> steps;
  };
  static constexpr int64_t kMaxStartedRuns = 2;
  struct BoundState {
    std::string name;
    const std::byte* begin;
    const std::byte* end;
    bool writable, updated;
  };
  // A failure of runs in progress.
  struct Failure {
    int64_t first, last;  // the numbers of the calls
    absl::Status status;
  };

  Executor(Executable executable, Communicator* communicator, Device* device, const ExecutorOptions& options);
  // --- executor_load.cc
  absl::Status Allocate();
  absl::Status AllocateBuffers();
  absl::Status AllocateShared();
  absl::Status AllocateForQueue();
  absl::Status CheckFits() const;
  absl::Status Agree();
  absl::Status MakeAxes();
  absl::Status MakeUrgentCommunicator(AxisContext& context, int axis);
  absl::Status MakeLanes();
  absl::Status Prepare();
  void FindUpdates();
  void NameSteps();

  // --- executor_states.cc
  absl::Status AssignShared(const ValueInfo& info, const std::byte* data);

  // --- executor_run.cc: one run, until it is queued
  // Set given_inputs_ and given_results_ to the memory of inputs and results.
  absl::Status FindInputs(std::span<const NamedInput> inputs);
  absl::Status FindResults(std::span<const NamedResult> results);
  absl::Status BindInputs();
  absl::Status BindSettings();
  absl::Status BindResults();
  absl::Status CopyResultsToHost();
  // Starts a collective without elements along each axis on which ranks compare their evidence and the program has no
  // collective. It ends before the first step that may write a state.
  absl::Status StartComparisons();
  absl::Status WaitForComparisons();
  std::string NameInMessages(const StepInfo& step) const;
  absl::Status RunSteps(StartedRun& run);
  absl::Status RunCombined(StepContext& context, StartedRun& run);
  absl::Status RunAll(StartedRun& run);

  // --- executor.cc: runs in progress, and their failures
  StartedRun& StartedRunOf(int64_t call) { return started_runs_[static_cast<size_t>(call % kMaxStartedRuns)]; }
  bool RunsAhead() const;
  // Waits for the runs up to `call`. After an error, no run is in progress.
  absl::Status Finish(int64_t call);
  // Waits for all runs, then returns an unreported failure.
  absl::Status WaitForAllRuns();
  // Returns a failure that has not been reported to the caller.
  absl::Status TakeUnreportedFailure();
  // Marks the runs in progress as failed.
  void Fail(const absl::Status& cause);
  // After an error: aborts the communicator, and removes all work from the device's queue, except work that never ends.
  void GiveUp(const absl::Status& cause);
  void Count(const StartedRun& run);
  void Spoil(const absl::Status& cause);
  absl::Status CheckSpoilt() const;
  absl::StatusOr<const ValueInfo*> FindState(std::string_view name) const;
  absl::Status CheckIsHere(const ValueInfo& state) const;
  absl::StatusOr<size_t> FindSetting(std::string_view name) const;

  // Records an event of the run that is being started, with its beginning `time`.
  void Record(StepEvent::Kind kind, int64_t time, int32_t step = 0) {
    if (!records_) return;
    recorder_->Record(
        StepEvent{time, step, static_cast<uint32_t>(calls_.load(std::memory_order_relaxed)), recorded_as_, kind});
  }

  Executable executable_;
  Communicator& communicator_;
  Device& device_;
  const ExecutorOptions options_;
  ExclusiveUse::Flag in_use_;
  std::vector<std::byte*> addresses_;  // of each buffer; on the host, those of inputs and results change
  std::vector<std::unique_ptr<DeviceMemory>> memory_;  // owned by the executor
  uint64_t bytes_registered_ = 0;
  std::vector<std::unique_ptr<RegisteredMemory>> registered_;  // allocated by the communicator
  std::vector<std::pair<std::string, std::string>> unregistered_;
  std::vector<std::byte*> ahead_;       // by input, on a device: the target of copies while the previous run computes
  std::unique_ptr<DeviceEvent> taken_;  // the inputs of the last run have been copied from there
  std::vector<const std::byte*> given_inputs_;  // by input, of the current call
  std::vector<double> settings_;                // by setting
  std::byte* settings_ahead_ = nullptr;         // on a device: like ahead_
  bool settings_changed_ = true;                // since the last run
  std::vector<std::byte*> given_results_;       // by result; null: the executor's memory
  std::vector<std::byte*> own_results_;         // by result; null until needed
  std::vector<bool> result_is_own_;             // in the last run
  std::vector<Tensor> copied_results_;          // by result: copies from a device by ResultOfLastRun
  bool has_results_ = false;                    // the last run has begun and not failed
  std::atomic<int64_t> calls_{0};               // the number of started calls since Load
  std::atomic<int64_t> done_{0};                // the number of calls that ended
  std::array<StartedRun, kMaxStartedRuns> started_runs_;
  Recorder* recorder_ = nullptr;    // of the communicator; null without recording
  bool records_ = false;            // in the present run
  uint16_t recorded_as_ = 0;        // the number of the program in the recorder
  std::vector<std::string> roles_;  // by rank of the world: its part of the program; empty: all run the whole program
  std::vector<Failure> failures_;   // all since Load
  bool unreported_ = false;         // the last failure has not been reported
  size_t first_update_ = 0;         // the first step that may write a state
  std::vector<std::string> updated_states_;  // by some step
  bool gave_up_ = false;                     // the communicator is then no longer usable
  absl::Status spoilt_;                      // the cause, while unassigned_ is not empty
  std::vector<std::string> unassigned_;      // states to be assigned before the next run
  std::vector<BoundState> bound_;            // states in the caller's memory
  std::vector<Communicator::Ticket> tickets_;
  // Made by Split from the world: for axes that are not the whole mesh, and for urgent collectives.
  std::vector<std::unique_ptr<Communicator>> parts_;
  std::vector<AxisContext> axes_;  // of the mesh, then those of lanes
  StepObserver* observer_ = nullptr;
  std::unique_ptr<ReplicaEvidence> evidence_;
  std::unique_ptr<ServedStates> served_;  // null: servers have no states of the program
  mutable std::mutex counting_;           // guards the following members
  ExecutorCounters counters_;
  std::vector<double> step_seconds_;  // of the counted runs
};

}  // namespace lockstep
