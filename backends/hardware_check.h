// compile(verify_hardware=512): each 512th step is computed again by a neighbour, and bits that differ name the host
// that computed wrongly. One thread at a time uses an object.
//
// Rank r sends what its part of the step depends on to rank r + 1: its inputs, those states that not all ranks have in
// common, and the outputs of the step's collectives. Rank r + 1 computes the part again with a second executor, whose
// collectives give out these outputs (replay_communicator.h). So the pairs are independent of each other: a wrong bit
// of one rank does not reach the second computations of the others. Ranks compare hashes of all that the part hands to
// collectives, of its results and of its next states.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/compile_and_load.h"
#include "backends/replay_communicator.h"
#include "backends/state_values.h"
#include "core/status.h"

namespace lockstep {

class HardwareCheck {
 public:
  // Compiles the program again, for the second computations, with memory of its own: about as much as the program's.
  // `loaded` and the communicator must outlive the object. Collective. Requires options that CheckOptions accepts with
  // verify_hardware: all ranks run the same program, on CPUs, and share no memory.
  static absl::StatusOr<std::unique_ptr<HardwareCheck>> Create(LoadedProgram& loaded, Communicator& communicator);

  // Calls `run`, which runs the program once on these inputs and results. If it is time, because step + 1 is a multiple
  // of LoadedProgram::options.verify_hardware, the step is also computed by the neighbours. If hashes differ, a third
  // computation decides: of three ranks, the one that differs from the other two is wrong. With two ranks, both repeat
  // what they did, and the one that does not repeat its own bits is wrong; if both do, either may be. One rank repeats
  // its step itself. All ranks get their states back and return FailedPrecondition with the ranks, their hosts, and the
  // first value with other bits. The communicator remains usable. Collective.
  //
  // What is not detected: errors in the sums of collectives, which reach all ranks alike, and errors that both
  // computations make alike. Replicated states are those of the rank that computes, so a bit that changed in the
  // memory of one rank is found here, too.
  absl::Status Run(int64_t step, std::span<const NamedInput> inputs, std::span<const NamedResult> results,
                   const std::function<absl::Status()>& run);

  // Sets an observer that sees the steps of all these computations, too, after the check itself; null: none.
  void AlsoObserve(StepObserver* observer) { also_ = observer; }

 private:
  class Recorder;
  // A second executor, for the part of the rank `shift` before this one.
  struct Second {
    CollectiveOutputs outputs;
    std::unique_ptr<ReplayCommunicator> communicator;
    LoadedProgram program;  // destroyed before the communicator
  };
  // The hashes of one computation of a part: by value, in the order of labels_.
  using Hashes = std::vector<uint64_t>;

  HardwareCheck(LoadedProgram& loaded, Communicator& communicator) : loaded_(loaded), communicator_(communicator) {}

  absl::StatusOr<Second*> SecondFor(int shift);
  // Adds the hashes of the results and states after a run.
  static absl::Status AddEnd(Executor& executor, std::span<const NamedResult> results, Hashes& hashes,
                             std::vector<std::string>& labels);
  // Returns what a rank needs to compute this rank's part: the inputs, the states that not all ranks have in common,
  // and the outputs of collectives.
  std::vector<std::byte> OwnPart(std::span<const NamedInput> inputs, const CollectiveOutputs& outputs) const;
  // Gives a part of another rank to the executor that computes it. Returns its inputs, which borrow from `part`. What
  // is in it has the types and sizes of `inputs` and `outputs`, this rank's own.
  absl::StatusOr<std::vector<NamedInput>> Prepare(Second& second, std::span<const std::byte> part,
                                                  std::span<const NamedInput> inputs, const CollectiveOutputs& outputs);
  // Runs once. Returns the hashes.
  absl::StatusOr<Hashes> HashesOf(Executor& executor, std::span<const NamedInput> inputs,
                                  std::span<const NamedResult> results) const;
  // Computes the part of the rank `shift` before this one again. Returns the hashes of all ranks, by the rank whose
  // part it is.
  absl::StatusOr<std::vector<Hashes>> Again(int shift, std::span<const NamedInput> inputs,
                                            std::span<const NamedResult> results, const CollectiveOutputs& outputs);
  absl::StatusOr<std::vector<Hashes>> OfAll(const Hashes& own, int shift);
  absl::Status Compare(int64_t step, std::span<const NamedInput> inputs, std::span<const NamedResult> results,
                       const Hashes& own, const CollectiveOutputs& outputs);
  std::string NameOf(int rank) const;

  LoadedProgram& loaded_;
  Communicator& communicator_;
  StateValues before_;                              // all states before a step that is verified
  std::vector<std::string> labels_;                 // of the hashed values
  std::map<int, std::unique_ptr<Second>> seconds_;  // by shift
  StepObserver* also_ = nullptr;
};

}  // namespace lockstep
