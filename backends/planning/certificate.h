// Proves from the final steps that ranks which run the same collectives cannot hang or race, and makes the order certificate that
// ranks compare when they load. It trusts none of the stages before it and shares no code with them.
//
//  (O1) The starts are one total order, numbered without gaps: each collective starts once.
//  (O2) Each start has exactly one wait, after it, for the same collective.
//  (O3) Between start and wait no step writes the collective's input, nor reads or writes its output. Scratch memory counts as
//       written, and what another collective takes and gives as read and written.
//  (O4) A collective's operands lie in its slices. An all_reduce is in place; of the others, input and output are apart.
//  (O5) Within a step a write, and its scratch memory, shares no byte with another operand, unless the step says that the write
//       may overwrite a read: then they are the same bytes.
//
// The hash is over the collectives in order: op, kind, dtype, count, and each operand's name, offset and memory layout.

#pragma once

#include "core/status.h"
#include "runtime/executable.h"

namespace lockstep {

// The error is Internal, and names the step and the rule.
absl::StatusOr<Certificate> CertifyOrder(const StepList& steps);

}  // namespace lockstep
