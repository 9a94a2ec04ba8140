// Proves from the final steps that ranks which run the same collectives cannot deadlock or race, and makes the order
// certificate that ranks compare when they load. It does not rely on the earlier stages and shares no code with them.
//
//  (O1) The starts are in one total order over all axes of the mesh, numbered without gaps: each collective starts
//       once.
//  (O2) Each start has exactly one wait, after it, for the same collective: all of its properties are equal.
//  (O3) Between start and wait no step writes the collective's input, or reads or writes its output. Scratch memory
//       counts as written. Inputs and outputs of other collectives count as read and written.
//  (O4) A collective's operands and results are inside its slices. An all_reduce is in place; other collectives have
//       separate inputs and outputs.
//  (O5) Within a step a write, and its scratch memory, shares no byte with another operand, unless the step says that
//       the write may overwrite a read: then they are the same bytes.
//  (O6) A collective is along an axis of the mesh with more than one rank, and its start and wait use the communicator
//       of this axis. A transfer is along a lane, whose communicator has two ranks, and has only its operand or only
//       its result. Inputs and outputs are in memory that is registered with this communicator, which would have to
//       copy from other memory.
//  (O7) In memory that ranks share, each rank writes only its own part, and no rank reads the whole meanwhile or
//       between runs. Between a step that reads the whole (or the beginning of a run) and a later one that writes a
//       part, and between a step that writes a part and a later one that reads the whole (or the end), there is a
//       collective that synchronizes all these ranks: it starts after the first step and is waited for before the
//       second.
//  (O8) Each state that parameter servers update has one push, then the start of one pull, then its wait; no step
//       accesses the pulled value between start and wait. Therefore no two workers wait for each other: each worker has
//       pushed before it reaches the wait.
//
// The hash covers the collectives of all axes in order: op, root, kind, dtype, counts, pairs, axis, label, and each
// operand's name, offset, bytes and memory layout; and the pushes and pulls, in the order of the steps.
//
// Equal certificates mean that no rank waits for ever, although each axis has its own communicator
// (docs/decisions/0009): a collective completes once all ranks of its group have started it, and a start waits only for
// collectives that started earlier. Among the waiting ranks, take one that has started the fewest collectives: all
// other ranks have started the collective that it waits for. If ranks run different parts of a program, the lines of
// the parts differ, and runtime/execution/part_order.h checks all of them.

#pragma once

#include <span>

#include "core/placement.h"
#include "core/status.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// Returns the certificate, or an Internal error that names the step and the rule.
absl::StatusOr<Certificate> CertifyOrder(const StepList& steps, std::span<const Buffer> buffers, const Mesh& mesh,
                                         std::span<const Lane> lanes = {});

}  // namespace lockstep
