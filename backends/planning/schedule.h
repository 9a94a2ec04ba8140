// Turns each collective of a program into a start and a wait, and places its inputs and outputs in buckets, in memory
// that is registered with the communicator of its axis. The operands of a collective are adjacent there, and so are its
// results; those of an all_reduce overwrite the operands, others have a separate bucket.
//
//   [4] matmul -> %dw          [4] matmul -> %dw, in bucket 0
//   [5] sum -> %db             [5] sum -> %db, in bucket 0+4096
//   [6] conv -> %dv     ==>        all_reduce.start bucket 0            complete here, after [5]
//   [7] all_reduce %dw, %db    [6] conv -> %dv
//   [8] sgd %w, %dw'               all_reduce.wait bucket 0             before the first use
//                              [8] sgd %w, %dw'
//
// Instructions and collectives keep their order. An operand is copied into its bucket only if it cannot be placed
// there: it is not a temporary, is in another bucket, or is still needed after an all_reduce has started. A collective
// of one operand that is in a bucket of the same axis, such as another collective's result, reads it from there.

// A collective is urgent (CollectiveInfo::is_urgent) if it is small and is waited for before another one along its axis
// starts, such as that of a layer's statistics: the computation needs it soon. Gradients are not urgent, because they
// are needed only at the end. Collectives of more than kMostUrgentBytes are not urgent either: they would delay the
// collectives that they overtake for too long, and ranks that overtake copy them. They are cut into pieces that take
// turns instead.
//
// A transfer between two ranks has only its operand or only its result, in memory of its lane. A rank may have at most
// kTransfersInFlight transfers in flight along a lane as their source. Before another one it waits until the first has
// been received, so that its memory is free. The stages of a pipeline send this many before one comes back.
//
// If ranks share states (share_states.h), each reduction to slices is waited for before the next collective starts, so
// that its input memory can be reused. This costs little: ranks that share memory do the reduction in the wait.

#pragma once

#include "backends/planning/program.h"
#include "core/status.h"

namespace lockstep {

inline constexpr int64_t kMostUrgentBytes = 256 * 1024;

// The number of ranks along the lane's axis, but at least this: the source can be a step ahead of the target.
inline constexpr int64_t kTransfersInFlight = 2;

void ScheduleCollectives(Program& program);

}  // namespace lockstep
