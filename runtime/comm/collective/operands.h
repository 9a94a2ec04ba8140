// Checks the arguments of a collective, as far as a rank can do so by itself before it starts anything. A pure
// function; any thread.

#pragma once

#include "absl/status/status.h"
#include "runtime/collective.h"
#include "runtime/communicator.h"

namespace lockstep {

// Returns kInvalidArgument, with the call, if the root or a rank of a pair does not exist, a rank is a source or a
// target twice, a count is negative, an operand is null, or the operands overlap and are not in place. `rank` is the
// caller's, of `size` ranks. An input that is not read (ReadsInput) may be anything, and so may the operands of a call
// that is only compared.
absl::Status CheckOperands(const Collective& collective, const void* input, const void* output,
                           const Communicator::Call& call, int rank, int size);

}  // namespace lockstep
