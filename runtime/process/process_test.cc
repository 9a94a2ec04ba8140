#include "runtime/process/process.h"

#include <sched.h>

#include <thread>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(Process, CoresAreThoseOfTheThread) {
  EXPECT_GE(AvailableCores(), 1);
  std::thread bound([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) GTEST_SKIP() << "it may not choose its cores";
    EXPECT_EQ(AvailableCores(), 1);
  });
  bound.join();
}

}  // namespace
}  // namespace lockstep
