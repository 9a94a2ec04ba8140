// Whether the arguments of a collective are possible, which a rank can tell by itself, before it starts anything. A
// pure function; any thread.

#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "runtime/comm/collective/collective_call.h"

namespace lockstep {

// kInvalidArgument, with the call, if the root or one of a pair is no rank, a rank is twice a source or a target, a
// count is negative, an operand is null, or the operands overlap otherwise than in place. `rank` is the caller's, of
// `size`. An input that is not read (ReadsInput) may be anything.
absl::Status CheckOperands(const CollectiveCall& collective, const void* input, const void* output,
                           std::string_view label, int rank, int size);

}  // namespace lockstep
