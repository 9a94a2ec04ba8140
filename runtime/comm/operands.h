// Whether the arguments of a collective are possible, which a rank can tell by itself, before it starts anything. A
// pure function; any thread.

#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "runtime/comm/control_block.h"

namespace lockstep {

// kInvalidArgument, with the call, if the root is no rank, the count is negative, an operand is null, or the operands
// overlap otherwise than in place. `rank` is the caller's, of `size`. Where an operand is not used, as the input of a
// rank that is not the root of a broadcast, it is to be the other one.
absl::Status CheckOperands(const OpDescription& description, const void* input, const void* output,
                           std::string_view label, int rank, int size);

}  // namespace lockstep
