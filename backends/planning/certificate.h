// Proves from the final steps that ranks which run the same collectives cannot hang or race, and makes the order
// certificate that ranks compare when they load. It trusts none of the stages before it and shares no code with them.
//
//  (O1) The starts are one total order over all axes of the mesh, numbered without gaps: each collective starts once.
//  (O2) Each start has exactly one wait, after it, for the same collective: all that is said of it is equal.
//  (O3) Between start and wait no step writes the collective's input, nor reads or writes its output. Scratch memory
//       counts as written, and what another collective takes and gives as read and written.
//  (O4) A collective's operands and results lie in its slices. An all_reduce is in place; of the others, input and
//       output are apart.
//  (O5) Within a step a write, and its scratch memory, shares no byte with another operand, unless the step says that
//       the write may overwrite a read: then they are the same bytes.
//  (O6) A collective is along an axis of the mesh with more than one rank, whose communicator its start and its wait
//       use; a transfer along a lane, whose communicator is of two ranks, and has its operand or its result alone. What
//       it takes and gives lies in memory that is registered with that communicator, which would copy what is not its
//       own.
//  (O7) Of memory that ranks share each writes its own part alone, and no rank reads the whole meanwhile, nor between
//       runs: of a step that reads the whole, or the begin of a run, and a later one that writes a part, and of one
//       that writes a part and a later one that reads the whole, or the end, a collective in which all these ranks meet
//       starts after the first and is waited for before the second.
//  (O8) Of each state that parameter servers update there is one push, then the start of one pull, then its wait; what
//       is pulled is touched by no step between the two. So no worker waits for one that waits for it: all have pushed
//       before they come to the wait.
//
// The hash is over the collectives of all axes in order: op, root, kind, dtype, counts, pairs, axis, label, and each
// operand's name, offset, bytes and memory layout; and over what is pushed and pulled, in the order of the steps.
//
// Why equal certificates mean that no rank waits for ever, though an axis has a communicator of its own
// (docs/decisions/0009): a collective completes once all ranks of its group have started it, and a start waits for
// nothing but collectives of earlier starts. Of the ranks that wait, take one that has started the fewest
// collectives: what it waits for, all others have started. Where ranks run parts of their own of a program, lines
// differ between the parts, and runtime/execution/part_order.h looks at all of them.

#pragma once

#include <span>

#include "core/placement.h"
#include "core/status.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// The error is Internal, and names the step and the rule.
absl::StatusOr<Certificate> CertifyOrder(const StepList& steps, std::span<const Buffer> buffers, const Mesh& mesh,
                                         std::span<const Lane> lanes = {});

}  // namespace lockstep
