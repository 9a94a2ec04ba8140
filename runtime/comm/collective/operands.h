// Whether the arguments of a collective are possible, which a rank can tell by itself, before it starts anything. A
// pure function; any thread.

#pragma once

#include "absl/status/status.h"
#include "runtime/collective.h"
#include "runtime/communicator.h"

namespace lockstep {

// kInvalidArgument, with the call, if the root or one of a pair is no rank, a rank is twice a source or a target, a
// count is negative, an operand is null, or the operands overlap otherwise than in place. `rank` is the caller's, of
// `size`. An input that is not read (ReadsInput) may be anything, and so may the operands of a call that is compared
// only.
absl::Status CheckOperands(const Collective& collective, const void* input, const void* output,
                           const Communicator::Call& call, int rank, int size);

}  // namespace lockstep
