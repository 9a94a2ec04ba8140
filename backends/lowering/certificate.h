// Proves from the final steps that ranks which run the same collectives cannot hang or race, and makes the order certificate that
// ranks compare when they load. It trusts none of the stages before it and shares no code with them.
//
//  (O1) Per communicator the starts are one total order, numbered without gaps: each collective starts once.
//  (O2) Each start has exactly one wait, behind it.
//  (O3) Between start and wait no step writes the collective's input, nor reads or writes its output.
//  (O4) A collective's operands lie in its slices, and an all_reduce is in place.
//
// The hash is over the collectives in order: op, kind, dtype, count, and each operand's name, offset and memory layout.

#pragma once

#include "core/status.h"
#include "runtime/executable.h"

namespace lockstep {

// The error is Internal, and names the step and the rule.
absl::StatusOr<Certificate> CertifyOrder(const StepList& steps);

}  // namespace lockstep
