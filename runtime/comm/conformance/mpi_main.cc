// Runs one rank of the conformance suite. mpi_test.sh starts it under mpirun, and meet_test.sh without MPI.
//   mpi_main RANKS [only=CASE] [max_group=N] [in_rank_order] [by_mpi=R|all] [route=NAME] [measured=R]
//   [die=R] [stop=R [after=MS]] [late_Init=R] [late_Finalize=R] [by=S] [single=R]
// Prints "rank R of N on HOST: K cases passed" and exits with 0, or prints the failure. With die=R, rank R kills itself
// during a collective, and the others print their errors. With stop=R, rank R is stopped (SIGSTOP) before a collective,
// or `after` so many milliseconds of large collectives. With late_Init=R and late_Finalize=R, rank R arrives or leaves
// S seconds late. With by_mpi=all, MPI carries the messages between groups of ranks; with by_mpi=R, only rank R
// requests this. With route=NAME, collectives take that route if they can; otherwise the default costs decide, and with
// measured=R only rank R requests measured costs. With single=R, rank R has initialised MPI itself, for one thread, and
// all print their errors.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/comm/conformance/cases.h"
#include "runtime/comm/conformance/watchdog.h"
#include "runtime/comm/mpi/from_environment.h"
#include "runtime/comm/mpi/mpi_library.h"

namespace lockstep {
namespace {

// Returns the number that mpirun or the environment gave to this rank; empty without either.
std::string RankText() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"}) {
    if (const char* rank = std::getenv(variable)) return rank;
  }
  return "";
}

absl::Status DieInACollective(const WorldOptions& options, int victim) {
  absl::StatusOr<std::unique_ptr<Communicator>> world = CreateFromEnvironment(options);
  if (!world.ok()) return world.status();
  Communicator& c = **world;
  std::vector<float> x(1000);
  absl::Status status =
      c.Run(Collective::AllReduce(1000, DType::kF32, ReduceKind::kSum), x.data(), x.data(), {.label = "bucket 0"});
  if (!status.ok()) return status;
  if (c.rank() == victim) {
    absl::SleepFor(absl::Milliseconds(200));
    std::printf("the victim dies at %lld ms\n", static_cast<long long>(absl::ToUnixMillis(absl::Now())));
    std::fflush(stdout);
    kill(getpid(), SIGKILL);
  }
  status = c.Run(Collective::AllReduce(1000, DType::kF32, ReduceKind::kSum), x.data(), x.data(), {.label = "bucket 1"});
  std::printf("rank %d learns: %s\n", c.rank(), status.ToString().c_str());
  std::fflush(stdout);
  return status;
}

// All ranks reduce until an error. Rank `victim` is stopped after `milliseconds`, and killed at the end.
absl::Status StopInACollective(WorldOptions options, int victim, int milliseconds) {
  options.communicator.timeout = absl::Seconds(4);  // also limits the start of all ranks, despite other load
  absl::StatusOr<std::unique_ptr<Communicator>> world = CreateFromEnvironment(options);
  if (!world.ok()) return world.status();
  Communicator& c = **world;
  absl::StatusOr<std::vector<std::string>> processes = c.AllGatherBytes(std::to_string(getpid()), "processes");
  if (!processes.ok()) return processes.status();
  std::vector<float> x(4 << 20);
  std::thread stopper;
  if (c.rank() == victim) {
    if (milliseconds == 0) raise(SIGSTOP);
    stopper = std::thread([milliseconds] {
      absl::SleepFor(absl::Milliseconds(milliseconds));
      raise(SIGSTOP);
    });
    stopper.detach();
  }
  absl::Status status;
  while (status.ok()) {
    const int64_t count = milliseconds == 0 ? 1000 : static_cast<int64_t>(x.size());
    status =
        c.Run(Collective::AllReduce(count, DType::kF32, ReduceKind::kMax), x.data(), x.data(), {.label = "bucket 1"});
  }
  std::printf("rank %d learns: %s\n", c.rank(), status.ToString().c_str());
  std::fflush(stdout);
  absl::SleepFor(absl::Seconds(2));  // until all others have printed
  kill(std::stoi((*processes)[victim]), SIGKILL);
  return status;
}

// All ranks reduce until an error, which each writes to a file.
absl::Status ReduceForever(const WorldOptions& options, const std::string& file) {
  absl::StatusOr<std::unique_ptr<Communicator>> world = CreateFromEnvironment(options);
  if (!world.ok()) return world.status();
  Communicator& c = **world;
  std::vector<float> x(1 << 20);
  absl::Status status;
  for (int call = 0; status.ok(); ++call) {
    status = c.Run(Collective::AllReduce(static_cast<int64_t>(x.size()), DType::kF32, ReduceKind::kMax), x.data(),
                   x.data(), {.label = "bucket 1"});
    if (call == 5) std::ofstream(file + std::to_string(c.rank()) + ".begun");
  }
  const std::string path = file + std::to_string(c.rank());
  std::ofstream(path + ".part") << status.ToString() << "\n";
  std::rename((path + ".part").c_str(), path.c_str());
  return status;
}

// All ranks create a communicator and end. Rank `late_init` arrives late by `by`, rank `late_finalize` leaves late by
// it.
absl::Status ComeAndGo(const WorldOptions& options, int late_init, int late_finalize, absl::Duration by) {
  const std::string rank = RankText();
  if (rank.empty()) return absl::FailedPreconditionError("not under mpirun");
  if (std::stoi(rank) == late_init) absl::SleepFor(by);
  absl::StatusOr<std::unique_ptr<Communicator>> world = CreateFromEnvironment(options);
  if (!world.ok()) return world.status();
  world->reset();
  if (std::stoi(rank) == late_finalize) absl::SleepFor(by);
  return absl::OkStatus();
}

// Rank `single` initialises MPI itself, for one thread. All ranks try to create a communicator.
absl::Status InitializeForOneThread(const WorldOptions& options, int single) {
  const std::string rank = RankText();
  if (rank.empty()) return absl::FailedPreconditionError("not under mpirun");
  const bool is_single = std::stoi(rank) == single;
  int provided = 0;
  const absl::Status opened = OpenMpi();
  if (!opened.ok()) return opened;
  if (is_single) Mpi().Init_thread(nullptr, nullptr, kMpiThreadSingle, &provided);
  std::printf("rank %s learns: %s\n", rank.c_str(), CreateFromEnvironment(options).status().ToString().c_str());
  if (is_single) Mpi().Finalize();
  return absl::OkStatus();
}

// Makes a world for a case. All ranks arrive at about the same time, because a world with a short timeout would fail
// otherwise.
absl::StatusOr<std::unique_ptr<Communicator>> MakeWorld(WorldOptions options, const ConformanceCase& test,
                                                        bool in_rank_order) {
  WorldOptions patient = options;
  patient.communicator = {};
  absl::StatusOr<std::unique_ptr<Communicator>> meeting = CreateFromEnvironment(patient);
  if (meeting.ok()) (void)(*meeting)->Barrier("before a case");
  options.communicator = test.options;
  options.communicator.in_rank_order = in_rank_order;
  return CreateFromEnvironment(options);
}

// Runs this rank's part of a case, and destroys the world.
bool RunCase(const ConformanceCase& test, std::unique_ptr<Communicator> world, int ranks) {
  Watchdog watchdog;
  const int rank = world->rank();
  watchdog.Begin(rank, test.name);
  const absl::Time begin = absl::Now();
  absl::Status status = absl::OkStatus();
  if (world->size() != ranks) status = absl::InternalError("a world of " + std::to_string(world->size()) + " ranks");
  if (status.ok()) status = test.run(*world);
  if (!status.ok()) world->Abort(status);
  world.reset();
  watchdog.End(rank);
  if (std::getenv("LOCKSTEP_TEST_TIMES") != nullptr) {
    std::printf("rank %d: %s took %s\n", rank, test.name.c_str(), absl::FormatDuration(absl::Now() - begin).c_str());
  }
  if (!status.ok()) std::printf("rank %d: %s: %s\n", rank, test.name.c_str(), status.ToString().c_str());
  return status.ok();
}

int RunCases(const WorldOptions& options, int ranks, bool in_rank_order, const std::string& only) {
  std::atomic<int> passed{0}, failed{0};
  int rank = -1;
  std::string host;
  // Cases that wait run at once and first, so that the computations of others do not influence their timing.
  std::vector<ConformanceCase> cases = ConformanceCases();
  std::stable_partition(cases.begin(), cases.end(), [](const ConformanceCase& test) { return test.waits; });
  std::vector<std::thread> waiting;
  const auto await = [&waiting] {
    for (std::thread& thread : waiting) thread.join();
    waiting.clear();
  };
  Watchdog watchdog;
  const int watched = RankText().empty() ? 0 : std::stoi(RankText());
  for (const ConformanceCase& test : cases) {
    if (ranks < test.min_ranks || (!only.empty() && test.name != only)) continue;
    watchdog.Begin(watched, test.name);
    absl::StatusOr<std::unique_ptr<Communicator>> world = MakeWorld(options, test, in_rank_order);
    watchdog.End(watched);
    if (!world.ok()) {
      std::printf("%s: %s\n", test.name.c_str(), world.status().ToString().c_str());
      ++failed;
      continue;
    }
    rank = (*world)->rank();
    host = (*world)->host(rank);
    auto run = [&passed, &failed, ranks, test, communicator = *std::move(world)]() mutable {
      ++(RunCase(test, std::move(communicator), ranks) ? passed : failed);
    };
    if (test.waits) {
      waiting.emplace_back(std::move(run));
    } else {
      await();
      run();
    }
  }
  await();
  std::printf("rank %d of %d on %s: %d cases passed\n", rank, ranks, host.c_str(), passed.load());
  return failed == 0 && passed > 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  WorldOptions options;
  options.routes = WorldOptions::Routes::kDefault;
  int ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  std::string loop, only;
  bool in_rank_order = false;
  int victim = -1, stopped = -1, after = 0, late_init = -1, late_finalize = -1, by = 5, single = -1;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("only=", 0) == 0) only = argument.substr(5);
    if (argument.rfind("max_group=", 0) == 0) options.max_group = std::stoi(argument.substr(10));
    if (argument == "in_rank_order") in_rank_order = true;
    if (argument == "by_mpi=all" || argument == "by_mpi=" + RankText())
      options.between_hosts = WorldOptions::BetweenHosts::kMpi;
    if (argument.rfind("route=", 0) == 0) options.preferred_route = RouteNamed(argument.substr(6));
    if (argument == "measured=" + RankText()) options.routes = WorldOptions::Routes::kMeasured;
    if (argument.rfind("loop=", 0) == 0) loop = argument.substr(5);
    if (argument.rfind("die=", 0) == 0) victim = std::stoi(argument.substr(4));
    if (argument.rfind("stop=", 0) == 0) stopped = std::stoi(argument.substr(5));
    if (argument.rfind("after=", 0) == 0) after = std::stoi(argument.substr(6));
    if (argument.rfind("late_Init=", 0) == 0) late_init = std::stoi(argument.substr(10));
    if (argument.rfind("late_Finalize=", 0) == 0) late_finalize = std::stoi(argument.substr(14));
    if (argument.rfind("by=", 0) == 0) by = std::stoi(argument.substr(3));
    if (argument.rfind("single=", 0) == 0) single = std::stoi(argument.substr(7));
  }
  if (!loop.empty()) return ReduceForever(options, loop).ok() ? 0 : 1;
  if (single >= 0) return InitializeForOneThread(options, single).ok() ? 0 : 1;
  if (late_init >= 0 || late_finalize >= 0)
    return ComeAndGo(options, late_init, late_finalize, absl::Seconds(by)).ok() ? 0 : 1;
  if (stopped >= 0) return StopInACollective(options, stopped, after).ok() ? 0 : 1;
  if (victim >= 0) return DieInACollective(options, victim).ok() ? 0 : 1;
  return RunCases(options, ranks, in_rank_order, only);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
