// The offset between the clocks of hosts. Each clock counts from its own moment, so times of ranks on different hosts
// can only be compared with the offset. Called once, when a communicator between hosts is made.

#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/communicator.h"

namespace lockstep {

struct ClockOffset {
  int64_t ahead = 0;  // nanoseconds by which this rank's clock is ahead of rank 0's
  int64_t error = 0;  // the maximum error of `ahead`, except for drift
};

// Determines the offset. All ranks call it together, each with its own clock. In each of several all_gathers, every
// rank sends the times of its clock before and after the previous barrier. The round with the fastest messages bounds
// the offset best: no rank can leave a barrier before all have entered it (as in Cristian, "Probabilistic clock
// synchronization", 1989).
absl::StatusOr<ClockOffset> AlignClocks(Communicator& communicator, absl::FunctionRef<int64_t()> now);

}  // namespace lockstep
