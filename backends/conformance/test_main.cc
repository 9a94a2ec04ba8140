// main() of the tests in this folder: GoogleTest's flags, and --backend. If that backend cannot run here, for example
// without a GPU, no test runs and the reason is printed.

#include <cstdio>
#include <string>

#include "absl/flags/parse.h"
#include "backends/conformance/tested_backend.h"
#include "gtest/gtest.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  const std::string reason = lockstep::WhyItCannotRun();
  if (!reason.empty()) {
    std::printf("LEFT OUT: backend \"%s\" cannot run here: %s\n", std::string(lockstep::TestedBackend().name()).c_str(),
                reason.c_str());
    testing::GTEST_FLAG(filter) = "-*";  // no test may count as passed
  }
  return RUN_ALL_TESTS();
}
