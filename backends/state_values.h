// The values of the states of a program, kept aside while a step runs that may have to be undone.

#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "runtime/execution/executor.h"

namespace lockstep {

// Values by name, in the order of the executable's states.
using StateValues = std::vector<std::pair<std::string, Tensor>>;

// Reads those states with these names that are on this rank. Reuses the memory of `values`.
absl::Status ReadStates(Executor& executor, std::span<const std::string> names, StateValues& values);

// Assigns them. All ranks call it alike, with values of the same states.
absl::Status WriteStates(Executor& executor, const StateValues& values);

// Assigns the states and settings of `to` the values that those with the same names and types have in `from`.
absl::Status CopyStates(Executor& from, Executor& to);

// Sets the settings of `to`, which are among those of `from`, to the same values.
absl::Status CopySettings(Executor& from, Executor& to);

}  // namespace lockstep
