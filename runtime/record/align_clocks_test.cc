// Clocks that differ by days or not at all, of ranks that are threads.

#include "runtime/record/align_clocks.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "runtime/comm/in_process.h"
#include "runtime/record/clock.h"

namespace lockstep {
namespace {

TEST(AlignClocksTest, FindsHowFarClocksAreApart) {
  constexpr int64_t kSecond = 1'000'000'000;
  const std::vector<int64_t> ahead = {7 * kSecond, 0, -86'400 * kSecond, 7 * kSecond + 250'000};
  const int n = static_cast<int>(ahead.size());
  // Three groups of ranks, which exchange messages.
  auto world = CreateInProcessGroups(n, {0, 1, 3}, {}).value();
  std::vector<ClockOffset> found(ahead.size());
  std::vector<absl::Status> status(ahead.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < ahead.size(); ++r) {
    ranks.emplace_back([&, r] {
      const absl::StatusOr<ClockOffset> offset = AlignClocks(*world[r], [&] { return RecordNow() + ahead[r]; });
      status[r] = offset.status();
      if (offset.ok()) found[r] = *offset;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (size_t r = 0; r < ahead.size(); ++r) {
    ASSERT_TRUE(status[r].ok()) << status[r];
    EXPECT_GE(found[r].error, 0);
    EXPECT_LT(found[r].error, kSecond / 10) << "rank " << r;
    EXPECT_LE(std::abs(found[r].ahead - (ahead[r] - ahead[0])), found[r].error) << "rank " << r;
  }
  EXPECT_EQ(found[0].ahead, 0);
}

}  // namespace
}  // namespace lockstep
