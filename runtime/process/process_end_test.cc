#include "runtime/process/process_end.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

void First() { std::fputs("first ", stderr); }
void Second() { std::fputs("second ", stderr); }
void Between() { std::fputs("between ", stderr); }

void TellAll() {
  AtProcessEnd(First);
  std::atexit(Between);
  AtProcessEnd(Second);
}

TEST(ProcessEnd, ExitDoesTheLatestFirst) {
  EXPECT_EXIT(
      {
        TellAll();
        std::exit(3);
      },
      ::testing::ExitedWithCode(3), "^second between first $");
}

TEST(ProcessEnd, WhoEndsTheProcessItselfDoesAllOnce) {
  EXPECT_EXIT(
      {
        TellAll();
        RunProcessEndActions();
        RunProcessEndActions();
        _exit(3);
      },
      ::testing::ExitedWithCode(3), "^second first $");
  EXPECT_EXIT(
      {
        TellAll();
        RunProcessEndActions();
        std::exit(3);
      },
      ::testing::ExitedWithCode(3), "^second first between $");
}

}  // namespace
}  // namespace lockstep
