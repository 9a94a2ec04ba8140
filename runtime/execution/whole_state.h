// The global values of a program's states, for files that do not depend on the number of ranks. All ranks call these
// functions together, each rank from one thread.

#pragma once

#include <string_view>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/execution/executor.h"

namespace lockstep {

// Returns true if the rank has the value or a part of it. A value at one rank of an axis is only on that rank.
bool HasPart(const PlacementMap& placements, const Mesh& mesh, int64_t rank);

// Writes the global value of a state to rank 0's `whole`, with the state's global type, in host memory. The other ranks
// pass no memory and send their parts; they need memory for one part at a time. `communicator` is one of hosts with all
// ranks. If rank 0 has the whole state, nothing is communicated. Waits for runs in progress. The states of a spoiled
// executor are read as they are.
//
// NotFound if there is no such state. FailedPrecondition if ranks hold different values without a global value (placed
// `local` or `partial`), or if another thread uses the communicator. A rank that cannot read its part aborts the
// communicator.
absl::Status ReadWholeState(Executor& executor, Communicator& communicator, std::string_view name,
                            const TensorRef& whole);

}  // namespace lockstep
