#include "runtime/comm/conformance/watchdog.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(WatchdogDeathTest, NamesTheRankAndTheCase) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Watchdog watchdog(absl::Milliseconds(300));
        watchdog.Begin(0, "Quick");
        watchdog.Begin(1, "Slow");
        watchdog.End(0);
        absl::SleepFor(absl::Seconds(20));
      },
      ::testing::ExitedWithCode(Watchdog::kExitCode), "rank 1: Slow hangs: it has taken more than 300ms");
}

TEST(Watchdog, LetsCasesPassThatEnd) {
  Watchdog watchdog(absl::Seconds(1));
  for (int i = 0; i < 3; ++i) {
    watchdog.Begin(0, "Quick");
    absl::SleepFor(absl::Milliseconds(10));
    watchdog.End(0);
  }
  absl::SleepFor(absl::Milliseconds(1200));
}

}  // namespace
}  // namespace lockstep
