// Random graphs through the whole pipeline and on the CPU, against the interpreter on the graph as it was: what the passes make, the
// backend has kernels for, and they compute the same.

#include "test/random_graph/random_graph.h"

#include <gtest/gtest.h>

#include "backends/backend.h"
#include "backends/run_in_process.h"
#include "test/random_graph/compare.h"

namespace lockstep {
namespace {

class RandomGraphOnCpuTest : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomGraphOnCpuTest, AgreesWithTheInterpreter) {
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  for (uint64_t seed = GetParam(); seed < GetParam() + 25; ++seed) {
    const RandomProgram program = MakeRandomProgram(seed, {.max_extent = 6});
    const auto results = RunInProcess(program.graph, **backend, {program.inputs}, {});
    ASSERT_TRUE(results.ok()) << "seed " << seed << ": " << results.status() << "\n" << program.graph.ToString();
    const absl::Status status = CheckResults(program, (*results)[0]);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status << "\n" << program.graph.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphOnCpuTest, testing::Values(0, 25, 50, 75));

}  // namespace
}  // namespace lockstep
