// The states of a program as the ranks hold them together: what a file keeps of a program that any number of ranks run.
// All ranks call these functions together; those of one rank in one thread.

#pragma once

#include <string_view>

#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/execution/executor.h"

namespace lockstep {

// Whether the rank has what is placed so, or a part of it: of what is at one rank of an axis, that one.
bool HasPart(const PlacementMap& placements, const Mesh& mesh, int64_t rank);

// Puts the whole of a state into rank 0's `whole`, of the state's global type, in memory of the host. The other ranks
// give theirs: they pass no memory, and need some for a part while it is on its way. `communicator` is of the hosts,
// and of all ranks. A state that rank 0 has as a whole is its own, and nothing is communicated. Waits for runs that are
// under way; a spoilt executor's states are read as they are.
//
// NotFound if there is no such state, FailedPrecondition if ranks hold different values of it which have no whole (it
// is placed `local` or `partial`), or if another thread uses the communicator. Who cannot read its part aborts the
// communicator.
absl::Status ReadWholeState(Executor& executor, Communicator& communicator, std::string_view name,
                            const TensorRef& whole);

}  // namespace lockstep
