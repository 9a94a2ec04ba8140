// Turns each collective of a program into a start and a wait, and gives what it takes and gives places in buckets,
// which lie in memory that is registered with the communicator of its axis. Operands lie side by side there, and so do
// results; those of all_reduces take the operands' places, others have a bucket of their own.
//
//   [4] matmul -> %dw          [4] matmul -> %dw, in bucket 0
//   [5] sum -> %db             [5] sum -> %db, in bucket 0+4096
//   [6] conv -> %dv     ==>        all_reduce.start bucket 0            complete here, after [5]
//   [7] all_reduce %dw, %db    [6] conv -> %dv
//   [8] sgd %w, %dw'               all_reduce.wait bucket 0             before the first use
//                              [8] sgd %w, %dw'
//
// Instructions and collectives keep their order. An operand is copied into its bucket only where it cannot live there:
// it is no temporary, is in another bucket, or is still needed when an all_reduce has started. A collective of one
// operand that lies in a bucket of its axis, such as another one's result, takes it from there.

// A collective is urgent (CollectiveInfo::is_urgent) if it is waited for before another one along its axis starts, as
// that of a layer's statistics is, and is small: it lies on the way of the computation. Gradients, which nobody needs
// before the end, are not; nor is anything of more than kMostUrgentBytes, which would rather be cut into pieces that
// take turns than hold up what it overtakes, and is copied where ranks have to overtake.
//
// A transfer from one rank to another one has its operand or its result alone, in memory of its lane. At most
// kTransfersInFlight of what a rank gives along a lane are under way: who gives more waits until the first of them has
// been taken, so that its memory is free again. The stages of a pipeline give so many before one comes back.
//
// Where ranks share states (share_states.h), each reduction to slices is waited for before the next collective starts,
// so that what it took is free for what comes. Little is lost: ranks that share memory reduce when they wait.

#pragma once

#include "backends/planning/program.h"
#include "core/status.h"

namespace lockstep {

inline constexpr int64_t kMostUrgentBytes = 256 * 1024;

// As many as there are ranks along the axis of the lane, and at least this: a step ahead of who takes it.
inline constexpr int64_t kTransfersInFlight = 2;

void ScheduleCollectives(Program& program);

}  // namespace lockstep
