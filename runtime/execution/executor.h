// Runs an executable: holds its buffers, its state, and borrows the communicator. One thread at a time uses an
// Executor; with several ranks in a process each has its own, on its own thread. A thread that is in a call which
// returns a status while another one is in such a call of the same executor, or of any with the same communicator of
// several ranks, gets FailedPrecondition, and nothing else happens.
//
//   ASSIGN_OR_RETURN(auto executor, Executor::Load(std::move(executable), communicator, device));
//   RETURN_IF_ERROR(executor->AssignState("fc1.weight", {type, data}));
//   RETURN_IF_ERROR(executor->Run({{"image", {image_type, image}}, {"label", {label_type, label}}}, {{"loss", …}}));
//
// On a device with a queue a run need not be waited for at once: the next one's inputs are then copied, and its steps
// are queued, while this one computes. Two are under way at most.
//
//   ASSIGN_OR_RETURN(const int64_t first, executor->Start(inputs_of_first, results_of_first));
//   ASSIGN_OR_RETURN(const int64_t second, executor->Start(inputs_of_second, results_of_second));
//   RETURN_IF_ERROR(executor->Wait(first));  // its results are there
//
// What such a run meets is found by whichever call comes to wait for it, and told once by the next call that returns a
// status (but a Wait for a run that succeeded), as an error that names the calls which it may have been of; and by each
// Wait for one of them. All runs that were under way then have failed, and nothing touches memory of the caller any
// more. So it is on the host, too, where a run is at its end when Start returns.
//
// When a call that all ranks take part in (Load, Start, Run) fails on one rank, that rank aborts the communicator, so
// that its peers get an error that names it instead of waiting; a communicator that failed stays so. With one rank
// there is nobody to tell.
//
// Replicas that part are found by the collectives of a Run, which compare what the ranks say of themselves
// (runtime/execution/witness.h): the program that each runs, which states were assigned, the settings, and, every
// ExecutorOptions::check_every runs, the contents of inputs and states that are replicated. The error names two ranks
// and what differs. An axis along which the program has no collective gets one for that. Only a program that has no
// collective at all and updates no state that is replicated, such as an evaluation, compares nothing: each rank may run
// it as often as it likes.
//
// A run that fails before the first step that may write a state leaves the states as they were, and may be tried again.
// One that fails there or later may have updated some states and not others: the executor is then *spoilt*, and every
// Run and Start fails with the cause until each state that the steps update has been assigned again.
//
// States that parameter servers keep (runtime/execution/served_states.h) are read and assigned like others, by all
// workers alike.

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
#include <vector>

#include "runtime/exclusive_use.h"
#include "runtime/execution/executable.h"
#include "runtime/execution/served_states.h"
#include "runtime/execution/witness.h"
#include "runtime/record/recorder.h"

namespace lockstep {

// Row-major elements in host memory, of the executor's caller.
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
  // In the first run and every so many after it, ranks compare hashes of the inputs and states that are replicated;
  // states also in the run after an assignment. 0: never. Equal on all ranks.
  int64_t check_every = 512;
  // Runs the steps one by one, so that each has a time of its own, also where the backend has a way to run them at once
  // (Executable::whole). On a device with a queue each is waited for, and no run is under way when Start returns. Equal
  // on all ranks.
  bool profile = false;
  // Of a program whose states servers update (Executable::served): this rank's end of them, which outlives the
  // executor.
  ServerClient* servers = nullptr;
};

// Seconds of the caller's thread since Load, or since ResetCounters, in the runs that have been waited for and
// succeeded. One that fails adds to none of them: it may have stopped anywhere, or waited for a peer until the time was
// up. Where steps are queued, kernels and communication are the time that queueing takes, unless
// ExecutorOptions::profile is set.
struct ExecutorCounters {
  int64_t runs = 0;
  double total = 0;          // in Start, and in waiting for the run; what the device does between these is in none
  double kernels = 0;        // in kernels and copies, or all at once
  double communication = 0;  // in starts and waits
  // Checks, copies of inputs and results, the loop over steps; where steps are queued the wait for the device, too.
  double outside_kernels() const { return total - kernels - communication; }
};

struct StepProfile {
  const StepInfo* step;
  // Over the runs that the counters count; 0 where all steps run at once. On a device with a queue, where
  // ExecutorOptions::profile is set: from when the step before was done until this one is, with its launch and the
  // wait.
  double seconds = 0;
};

class Executor {
 public:
  // All ranks call it together. `communicator` must have as many ranks as the executable's mesh, which rank r of it
  // is in at the coordinates that Mesh::Coordinate gives; like `device` it outlives the executor. It is split into a
  // communicator for each axis of more than one rank, unless that axis is all of the mesh; and between hosts into one
  // more for what is urgent along an axis, where that would queue behind other collectives. Where ranks run parts of
  // their own, each lane between them has one, too. Fails if the ranks' numbers
  // of threads, libraries, processors, certificates or programs differ, with the first line that does, and its two
  // versions, or if parts do not fit together (part_order.h); the communicator goes on then, as all ranks have the same
  // error. What one rank meets after that, such as what the backend cannot prepare (Executable::prepare), aborts the
  // communicator.
  static absl::StatusOr<std::unique_ptr<Executor>> Load(Executable executable, Communicator* communicator,
                                                        Device* device, const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Executable& executable() const { return executable_; }

  // Start and Wait in one.
  absl::Status Run(std::span<const NamedInput> inputs, std::span<const NamedResult> results);

  // Begins to run all steps once, and returns the number of the call, of which the first is 1. `inputs` must name every
  // input once, in local types. A result that is named here is written to the caller's memory, the others to the
  // executor's. The inputs have been taken when it returns: they are read in place where the device is the host, which
  // has then run, and are copied where it is not. The results' memory must live until the run has been waited for, a
  // call has returned its error, or the executor is destroyed, which waits for it.
  //
  // Waits for the run before the last one if that is under way; for all, where the contents of replicas are compared
  // (check_every), where ExecutorOptions::profile is set, and where ranks talk by way of their hosts.
  // Between a Start and the end of its run no other executor of the same ranks may run on the same GPUs.
  //
  // InvalidArgument if inputs or results do not fit: nothing has begun, and the call has no number. FailedPrecondition
  // if an earlier call has spoilt the executor: the message says which, why, and which states are still to be assigned.
  absl::StatusOr<int64_t> Start(std::span<const NamedInput> inputs, std::span<const NamedResult> results);

  // Returns when the run of this number is done and its results are there, with its error if it failed, however often
  // it is asked. InvalidArgument if there is no such call.
  absl::Status Wait(int64_t call);

  // Whether the run was started and nobody has come to its end yet. Any thread may ask.
  bool IsUnderWay(int64_t call) const { return call > done_ && call <= calls_; }

  // OK, or the error that Run would return because of an earlier call. Who keeps states for later (a file) asks first.
  // Waits for runs, as all that follows but for counters.
  absl::Status CheckUsable();

  // A result of the last run that was not given memory: valid until the next. NotFound if there is none,
  // FailedPrecondition if that run failed.
  absl::StatusOr<ConstTensorRef> ResultOfLastRun(std::string_view name);

  // State by name, on all ranks alike: a state that only some ranks have assigned is an error of the next
  // Run. A state that other ranks alone have (ValueInfo::is_here) may be assigned here, too, which changes nothing; to
  // read it is FailedPrecondition, and names those ranks. All states are zero at first. A spoilt executor's states can
  // be read, to look at them. `tensor.type` must be the local type, or (assign) the global one, of which this rank then
  // takes its part. States that ranks share (Buffer::sharers) they assign together, in the same order: the call waits
  // for the others, and fails if their values differ.
  absl::Status AssignState(std::string_view name, const ConstTensorRef& tensor);

  // From now on the state lies in the caller's memory, with what is there, and not in the executor's, which is freed.
  // What runs make of it is there, and what is written there between two runs is what the next one reads: an assignment
  // that ranks do not hear of. `memory`, of the local type, must live as long as the executor, or until the state is
  // bound to other memory. Nobody else writes it in a run, and no result or other state lies there. If it is not
  // `writable`, AssignState fails.
  //
  // FailedPrecondition for a device, a shared state, one that other ranks have or that servers update, and for memory
  // that is not writable if a step updates the state.
  absl::Status BindState(std::string_view name, const TensorRef& memory, bool writable);

  // Until all states have been assigned, runs fail with `why`: before a caller assigns one after the other, and may
  // fail between two.
  absl::Status DoubtStates(const absl::Status& why);
  absl::Status ReadState(std::string_view name, const TensorRef& tensor);

  // The value of a setting in the runs that start from now on; those under way keep what they started with. At first
  // each has the value that the program says. All ranks set the same: where they compare evidence, the next run fails
  // on ranks whose values differ. An error names the setting and its range.
  absl::Status Set(std::string_view name, double value);
  absl::StatusOr<double> ReadSetting(std::string_view name);

  // How late gradients were (ServedStates::Staleness); FailedPrecondition of a program of which servers have nothing.
  absl::StatusOr<std::map<int64_t, int64_t>> Staleness();

  // Any thread may call these three, while another one runs, too: a run is counted as a whole, or not yet.
  ExecutorCounters counters() const;
  void ResetCounters();
  std::vector<StepProfile> profile() const;  // in order of the steps

  // The number of the program in what the communicator's recorder holds.
  uint16_t recorded_as() const { return recorded_as_; }

 private:
  class CallAlone;
  // One of the runs that may be under way.
  struct Flight {
    std::unique_ptr<DeviceEvent> done;
    size_t begun = 0;  // steps
    // Seconds of the caller's thread.
    double total = 0, witnesses = 0, whole = 0;
    std::vector<double> steps;
  };
  static constexpr int64_t kFlights = 2;
  struct BoundState {
    std::string name;
    const std::byte* begin;
    const std::byte* end;
    bool writable, updated;
  };
  // Of runs that were under way.
  struct Failure {
    int64_t first, last;  // calls
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
  absl::Status MakeUrgentLane(AxisContext& context, int axis);
  absl::Status MakeLanes();
  absl::Status Prepare();
  void FindUpdates();
  void NameSteps();

  // --- executor_states.cc
  absl::Status AssignShared(const ValueInfo& info, const std::byte* data);

  // --- executor_run.cc: one run, up to where it is queued
  // What inputs and results name, in given_inputs_ and given_results_.
  absl::Status FindInputs(std::span<const NamedInput> inputs);
  absl::Status FindResults(std::span<const NamedResult> results);
  absl::Status BindInputs();
  absl::Status BindSettings();
  absl::Status BindResults();
  absl::Status CopyResultsToHost();
  // Along each axis on which ranks compare their evidence and the program has no collective, one without elements.
  // It is under way until the first step that may write a state.
  absl::Status StartWitnesses();
  absl::Status WaitForWitnesses();
  std::string NameInMessages(const StepInfo& step) const;
  absl::Status RunSteps(Flight& flight);
  absl::Status RunAtOnce(StepContext& context, Flight& flight);
  absl::Status RunAll(Flight& flight);

  // --- executor.cc: runs that are under way, and what becomes of them
  Flight& FlightOf(int64_t call) { return flights_[static_cast<size_t>(call % kFlights)]; }
  bool RunsAhead() const;
  // Comes to the end of the runs up to `call`. After an error there is none under way.
  absl::Status Finish(int64_t call);
  // All runs; what is told then.
  absl::Status Settle();
  // The failure that nobody has been told of.
  absl::Status Tell();
  // What is under way has failed.
  void Fail(const absl::Status& cause);
  // After an error: tells the peers, and leaves nothing in the device's queue but what never ends.
  void GiveUp(const absl::Status& cause);
  void Count(const Flight& flight);
  void Spoil(const absl::Status& cause);
  absl::Status CheckSpoilt() const;
  absl::StatusOr<const ValueInfo*> FindState(std::string_view name) const;
  absl::Status CheckIsHere(const ValueInfo& state) const;
  absl::StatusOr<size_t> FindSetting(std::string_view name) const;

  // What the run that is being started does, from `time` on.
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
  std::vector<std::byte*> addresses_;                  // of each buffer; on the host those of inputs and results change
  std::vector<std::unique_ptr<DeviceMemory>> memory_;  // what the executor owns
  std::vector<std::unique_ptr<RegisteredMemory>> registered_;  // what the communicator gave
  std::vector<std::byte*> ahead_;       // by input, of a device: where it is copied while the run before computes
  std::unique_ptr<DeviceEvent> taken_;  // the inputs of the last run have been copied from there
  std::vector<const std::byte*> given_inputs_;  // by input, of the current call
  std::vector<double> settings_;                // by setting
  std::byte* settings_ahead_ = nullptr;         // of a device: as `ahead_`
  bool settings_changed_ = true;                // since the last run
  std::vector<std::byte*> given_results_;       // by result; null: the executor's
  std::vector<std::byte*> own_results_;         // by result; null until it is needed
  std::vector<bool> result_is_own_;             // in the last run
  std::vector<Tensor> copied_results_;          // by result: what ResultOfLastRun took from a device
  bool has_results_ = false;                    // the last run has begun, and not failed
  std::atomic<int64_t> calls_{0};               // of Start since Load that began
  std::atomic<int64_t> done_{0};                // of them
  std::array<Flight, kFlights> flights_;
  Recorder* recorder_ = nullptr;             // of the communicator; null: nobody records
  bool records_ = false;                     // in the present run
  uint16_t recorded_as_ = 0;                 // the number of the program there
  std::vector<std::string> roles_;           // by rank of the world: its part of the program; none: all run the whole
  std::vector<Failure> failures_;            // all since Load
  bool untold_ = false;                      // the last of them
  size_t first_update_ = 0;                  // the first step that may write a state
  std::vector<std::string> updated_states_;  // by some step
  bool gave_up_ = false;                     // after which the communicator is of no more use
  absl::Status spoilt_;                      // why, while unassigned_ is not empty
  std::vector<std::string> unassigned_;      // states to be assigned before the next run
  std::vector<BoundState> bound_;            // states that lie in the caller's memory
  std::vector<Communicator::Ticket> tickets_;
  // Of the world: for axes that are not all of it, and for what is urgent.
  std::vector<std::unique_ptr<Communicator>> parts_;
  std::vector<AxisContext> axes_;  // of the mesh; behind them those of lanes
  std::unique_ptr<Witness> witness_;
  std::unique_ptr<ServedStates> served_;  // null: servers have nothing of it
  mutable std::mutex counting_;           // guards what follows
  ExecutorCounters counters_;
  std::vector<double> step_seconds_;  // of the runs that are counted
};

}  // namespace lockstep
