// compile(check_numerics=True): a step that makes a NaN or an infinity is an error that names the op, and leaves the
// states as they were before it. One thread at a time uses an object.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backends/compile_and_load.h"
#include "backends/state_values.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

class NumericsCheck {
 public:
  // The program and the communicator must outlive the object.
  NumericsCheck(LoadedProgram& loaded, Communicator& communicator) : loaded_(loaded), communicator_(communicator) {}

  // Calls `run`, which runs the program once on these inputs and results, and looks at the results and the states that
  // it has updated: what is wrong in a step and matters reaches one of them. If a value on some rank has a NaN or an
  // infinity, all ranks get their states back, look for the op (backends/find_non_finite.h) and return
  // FailedPrecondition with it. The communicator remains usable. Collective. `step` is the number in the message.
  //
  // A step that a loss scale skips is not an error if its states are finite and its loss is not NaN. Neither is a state
  // that was infinite before the step, nor a value that has infinities, but no NaN, if no op or kernel made one from
  // finite operands: the step is run again, and from then on infinities of this value are taken as intended. A call of
  // an uneven step (passes/training/uneven.h) without rows is not looked at.
  //
  // Before each step the states that it updates are copied, and after it they are read; ranks exchange a small message.
  absl::Status Run(int64_t step, std::span<const NamedInput> inputs, std::span<const NamedResult> results,
                   const std::function<absl::Status()>& run);

 private:
  // Returns the names of the values on this rank that are not finite, in order, each behind its length.
  absl::StatusOr<std::string> WrongValues(std::span<const NamedResult> results);
  absl::StatusOr<bool> IsSkipped();
  // Adds the name of a value if it is wrong. `before`: its value before the step; null if it had none. With
  // `is_skipped`, it may have infinities.
  void Look(const std::string& name, const TensorType& type, const void* data, const Tensor* before, bool is_skipped,
            std::string& wrong) const;

  LoadedProgram& loaded_;
  Communicator& communicator_;
  StateValues before_;              // the states before the step
  std::vector<std::byte> after_;    // one of them after it
  std::set<std::string> intended_;  // values whose infinities are intended; equal on all ranks
};

}  // namespace lockstep
