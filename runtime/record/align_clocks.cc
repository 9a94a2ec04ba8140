#include "runtime/record/align_clocks.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/status.h"

namespace lockstep {
namespace {

constexpr int kRounds = 16;

struct Times {
  int64_t before = 0, after = 0;  // of a round
};

}  // namespace

absl::StatusOr<ClockOffset> AlignClocks(Communicator& communicator, absl::FunctionRef<int64_t()> now) {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  std::vector<Times> all(static_cast<size_t>(communicator.size()));
  Times mine;
  // One more round, to send the times of the last.
  for (int round = 0; round <= kRounds; ++round) {
    const Times last = mine;
    RETURN_IF_ERROR(
        communicator.Run(Collective::AllGather(2, DType::kI64), &last, all.data(), {.label = "clocks of the hosts"}));
    if (round > 0) {
      // Rank 0 did not leave before this rank had entered, and this rank not before rank 0 had entered.
      least = std::max(least, last.before - all[0].after);
      most = std::min(most, last.after - all[0].before);
    }
    mine.before = now();
    RETURN_IF_ERROR(communicator.Barrier("clocks of the hosts"));
    mine.after = now();
  }
  if (communicator.rank() == 0) return ClockOffset{};
  return ClockOffset{.ahead = least + (most - least) / 2, .error = (most - least) / 2};
}

}  // namespace lockstep
