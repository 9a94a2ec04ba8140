// How the clocks of hosts relate: each counts from a moment of its own, so times of ranks on several hosts can be
// compared only with the difference. Called once, when a communicator between hosts is made.

#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/communicator.h"

namespace lockstep {

struct ClockOffset {
  int64_t ahead = 0;  // nanoseconds by which this rank's clock is ahead of rank 0's
  int64_t error = 0;  // it is off by no more than that, but for drift
};

// All ranks call it together, each with its own clock. Of several all_gathers, in each of which every rank tells what
// its clock said before and after the one before it, those bound the difference best whose messages took least time: no
// rank can be through with one before all have come to it (as in Cristian, "Probabilistic clock synchronization",
// 1989).
absl::StatusOr<ClockOffset> AlignClocks(Communicator& communicator, absl::FunctionRef<int64_t()> now);

}  // namespace lockstep
