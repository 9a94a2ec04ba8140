// Runs an executable: holds its buffers, its state, and borrows the communicator. One thread at a time uses an
// Executor; with several ranks in a process each has its own, on its own thread. A thread that calls Load, Run,
// AssignState or ReadState while another one is in such a call of the same executor, or of any with the same
// communicator of several ranks, gets FailedPrecondition, and nothing else happens.
//
//   ASSIGN_OR_RETURN(auto executor, Executor::Load(std::move(executable), communicator, device));
//   RETURN_IF_ERROR(executor->AssignState("fc1.weight", {type, data}));
//   RETURN_IF_ERROR(executor->Run({{"image", {image_type, image}}, {"label", {label_type, label}}}, {{"loss", …}}));
//
// When a call that all ranks take part in (Load, Run) fails on one rank, that rank aborts the communicator, so that its
// peers get an error that names it instead of waiting; a communicator that failed stays so. With one rank there is
// nobody to tell.
//
// Replicas that part are found by the collectives of a Run, which compare what the ranks say of themselves
// (runtime/witness.h): the program that each runs, which states were assigned, and, every ExecutorOptions::check_every
// runs, the contents of inputs and states that are replicated. The error names two ranks and what differs. An axis
// along which the program has no collective gets one for that. Only a program that has no collective at all and updates
// no state that is replicated, such as an evaluation, compares nothing: each rank may run it as often as it likes.
//
// A Run that fails before the first step that may write a state leaves the states as they were, and may be tried again.
// One that fails there or later may have updated some states and not others: the executor is then *spoilt*, and every
// Run fails with the cause until each state that the steps update has been assigned again.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exclusive_use.h"
#include "runtime/executable.h"
#include "runtime/witness.h"

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
};

// Seconds since Load, or since ResetCounters, of the runs that succeeded. One that fails adds to none of them: it may
// have stopped anywhere, or waited for a peer until the time was up.
struct ExecutorCounters {
  int64_t runs = 0;
  double total = 0;                                                           // in Run, all of it
  double kernels = 0;                                                         // in kernels and copies
  double communication = 0;                                                   // in starts and waits
  double outside_kernels() const { return total - kernels - communication; }  // checks, binding, the loop over steps
};

struct StepProfile {
  const StepInfo* step;
  double seconds = 0;  // over all runs that succeeded
};

class Executor {
 public:
  // All ranks call it together. `communicator` must have as many ranks as the executable's mesh, which rank r of it
  // is in at the coordinates that Mesh::Coordinate gives; like `device` it outlives the executor. It is split into a
  // communicator for each axis of more than one rank, unless that axis is all of the mesh. Fails if the ranks'
  // numbers of threads, libraries, processors, certificates or programs differ, with the first line that does, and its
  // two versions.
  static absl::StatusOr<std::unique_ptr<Executor>> Load(Executable executable, Communicator* communicator,
                                                        Device* device, const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Executable& executable() const { return executable_; }

  // Runs all steps once. `inputs` must name every input once, in local types; they are read in place where the device
  // is the host. A result that is named here is written to the caller's memory, the others to the executor's.
  // FailedPrecondition if an earlier call has spoilt the executor: the message says which, why, and which states are
  // still to be assigned.
  absl::Status Run(std::span<const NamedInput> inputs, std::span<const NamedResult> results);

  // OK, or the error that Run would return because the executor is spoilt. Who keeps states for later (a file) asks
  // first.
  absl::Status CheckUsable() const;

  // A result of the last run that was not given memory: valid until the next. NotFound if there is none,
  // FailedPrecondition if that run failed.
  absl::StatusOr<ConstTensorRef> ResultOfLastRun(std::string_view name);

  // State by name, on all ranks alike: a state that only some ranks have assigned is an error of the next
  // Run. All states are zero at first. A spoilt executor's states can be read, to look at them. `tensor.type` must be
  // the local type, or (assign) the global one, of which this rank then takes its part.
  absl::Status AssignState(std::string_view name, const ConstTensorRef& tensor);
  absl::Status ReadState(std::string_view name, const TensorRef& tensor);

  const ExecutorCounters& counters() const { return counters_; }
  void ResetCounters();
  std::vector<StepProfile> profile() const;  // in order of the steps

 private:
  class CallAlone;
  Executor(Executable executable, Communicator* communicator, Device* device, const ExecutorOptions& options);
  absl::Status Allocate();
  absl::Status Agree();
  absl::Status MakeAxes();
  absl::Status BindInputs(std::span<const NamedInput> inputs);
  absl::Status BindResults(std::span<const NamedResult> results);
  absl::Status CopyResultsToHost(std::span<const NamedResult> results);
  // Along each axis on which ranks compare their evidence and the program has no collective, one without elements.
  // It is under way until the first step that may write a state.
  absl::Status StartWitnesses();
  absl::Status WaitForWitnesses();
  // `begun` becomes the number of steps that have begun, also on an error.
  absl::Status RunSteps(size_t& begun);
  absl::Status RunAll(std::span<const NamedInput> inputs, std::span<const NamedResult> results, size_t& begun);
  // After an error: tells the peers, and leaves nothing in the device's queue.
  void GiveUp(const absl::Status& cause);
  void Count(double total);  // a run that succeeded
  void FindUpdates();
  void Spoil(const absl::Status& cause);
  absl::StatusOr<const ValueInfo*> FindState(std::string_view name) const;

  Executable executable_;
  Communicator& communicator_;
  Device& device_;
  const ExecutorOptions options_;
  ExclusiveUse::Flag in_use_;
  std::vector<std::byte*> addresses_;                  // of each buffer; of inputs and results, for the current run
  std::vector<std::unique_ptr<DeviceMemory>> memory_;  // what the executor owns
  std::vector<std::unique_ptr<RegisteredMemory>> buckets_;  // what the communicator gave
  std::vector<std::byte*> own_results_;                     // by result; null until it is needed
  std::vector<bool> result_is_own_;                         // in the last run
  std::vector<Tensor> copied_results_;                      // by result: what ResultOfLastRun took from a device
  bool has_results_ = false;                                // the last run succeeded
  int64_t calls_ = 0;                                       // of Run since Load
  size_t first_update_ = 0;                                 // the first step that may write a state
  std::vector<std::string> updated_states_;                 // by some step
  absl::Status spoilt_;                                     // why, while unassigned_ is not empty
  std::vector<std::string> unassigned_;                     // states to be assigned before the next run
  std::vector<Communicator::Ticket> tickets_;
  std::vector<std::unique_ptr<Communicator>> parts_;  // of the world, for axes that are not all of it
  std::vector<AxisContext> axes_;                     // of the mesh
  std::unique_ptr<Witness> witness_;
  ExecutorCounters counters_;
  std::vector<double> step_seconds_;    // of all runs that succeeded
  std::vector<double> seconds_of_run_;  // of the current run, by step
  double witness_seconds_ = 0;          // of the current run, in WaitForWitnesses
};

}  // namespace lockstep
