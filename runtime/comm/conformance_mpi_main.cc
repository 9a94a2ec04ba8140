// One rank of the conformance suite over MPI; mpi_test.py starts it under mpirun and counts the ranks.
//   conformance_mpi_main RANKS [max_group=N] [die=R]
// Prints "rank R of N on HOST: K cases passed" and exits with 0, or says what failed. With die=R rank R kills itself in the
// midst of a collective, and the others print what they learn.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/comm/conformance_cases.h"
#include "runtime/comm/mpi.h"

namespace lockstep {
namespace {

absl::Status DieInACollective(const MpiOptions& options, int victim) {
  absl::StatusOr<std::unique_ptr<Communicator>> world = CreateMpi(options);
  if (!world.ok()) return world.status();
  Communicator& c = **world;
  std::vector<float> x(1000);
  absl::Status status = c.AllReduce(x.data(), x.data(), 1000, DType::kF32, ReduceKind::kSum, {.label = "bucket 0"});
  if (!status.ok()) return status;
  if (c.rank() == victim) {
    absl::SleepFor(absl::Milliseconds(200));
    kill(getpid(), SIGKILL);
  }
  status = c.AllReduce(x.data(), x.data(), 1000, DType::kF32, ReduceKind::kSum, {.label = "bucket 1"});
  std::printf("rank %d learns: %s\n", c.rank(), status.ToString().c_str());
  std::fflush(stdout);
  return status;
}

int RunCases(MpiOptions options, int ranks) {
  int passed = 0, failed = 0, rank = -1;
  std::string host;
  for (const ConformanceCase& test : ConformanceCases()) {
    if (ranks < test.min_ranks) continue;
    options.communicator = test.options;
    absl::StatusOr<std::unique_ptr<Communicator>> world = CreateMpi(options);
    absl::Status status = world.status();
    if (status.ok()) {
      rank = (*world)->rank();
      host = (*world)->host(rank);
      if ((*world)->size() != ranks) {
        std::printf("a world of %d ranks, expected %d\n", (*world)->size(), ranks);
        return 1;
      }
      const absl::Time begin = absl::Now();
      status = test.run(**world);
      if (!status.ok()) (*world)->Abort(status);
      world->reset();
      if (std::getenv("LOCKSTEP_TEST_TIMES") != nullptr) {
        std::printf("rank %d: %s took %s\n", rank, test.name.c_str(),
                    absl::FormatDuration(absl::Now() - begin).c_str());
      }
    }
    if (status.ok()) ++passed;
    else ++failed, std::printf("rank %d: %s: %s\n", rank, test.name.c_str(), status.ToString().c_str());
  }
  std::printf("rank %d of %d on %s: %d cases passed\n", rank, ranks, host.c_str(), passed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  MpiOptions options;
  int ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  int victim = -1;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("max_group=", 0) == 0) options.max_group = std::stoi(argument.substr(10));
    if (argument.rfind("die=", 0) == 0) victim = std::stoi(argument.substr(4));
  }
  if (victim >= 0) return DieInACollective(options, victim).ok() ? 0 : 1;
  return RunCases(options, ranks);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
