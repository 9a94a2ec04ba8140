// Timeouts do not depend on the wall clock: this test sets it while ranks wait.

#include "absl/time/clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "gtest/gtest.h"
#include "runtime/comm/in_process.h"

namespace {
std::atomic<int> wall_clock_offset{0};  // seconds
}

// Replaces the function of the C library in this whole program.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += wall_clock_offset.load();
  return result;
}

namespace lockstep {
namespace {

TEST(Clock, SettingTheWallClockEndsNoWait) {
  for (int offset : {3600, -3600}) {
    wall_clock_offset = 0;
    const absl::Time before = absl::Now();
    auto world = CreateInProcess(2, {.timeout = absl::Seconds(2)});
    ASSERT_TRUE(world.ok());
    std::thread late([&] {
      absl::SleepFor(absl::Milliseconds(100));
      wall_clock_offset = offset;
      absl::SleepFor(absl::Milliseconds(300));
      EXPECT_TRUE((*world)[1]->Barrier("barrier").ok());
    });
    EXPECT_EQ((*world)[0]->Barrier("barrier"), absl::OkStatus());
    late.join();
    EXPECT_GT(absl::AbsDuration(absl::Now() - before), absl::Minutes(50)) << "the test does not set the clock";
  }
  wall_clock_offset = 0;
}

}  // namespace
}  // namespace lockstep
