// Runs the conformance suite over ranks that are processes of one host, and tests the death of processes.

#include "runtime/comm/shared_memory.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bazel/num_cases.h"
#include "gtest/gtest.h"
#include "runtime/comm/conformance/cases.h"
#include "runtime/comm/conformance/watchdog.h"
#include "runtime/comm/host/memory.h"
#include "runtime/process/process.h"

namespace lockstep {
namespace {

struct Ended {
  int status = 0;      // from waitpid
  std::string report;  // the text that the rank wrote
};

// The ranks of a world, one process for each.
struct ForkedRanks {
  std::vector<pid_t> processes;
  std::vector<int> pipes;  // one for the report of each rank
};

// Starts a process for each rank, which runs `rank_main`. A successful process reports "ran".
ForkedRanks StartRanks(int ranks, const Communicator::Options& options,
                       const std::function<absl::Status(Communicator&)>& rank_main) {
  absl::StatusOr<SharedMemoryWorld> world = SharedMemoryWorld::Create(ranks);
  EXPECT_TRUE(world.ok()) << world.status();
  ForkedRanks started;
  for (int r = 0; r < ranks; ++r) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t process = fork();
    if (process == 0) {
      close(ends[0]);
      absl::Status status;
      Watchdog watchdog;
      watchdog.Begin(r, ::testing::UnitTest::GetInstance()->current_test_info()->name());
      {
        absl::StatusOr<std::unique_ptr<Communicator>> communicator = world->Join(r, options);
        status = communicator.status();
        if (status.ok()) {
          status = rank_main(**communicator);
          if (!status.ok()) (*communicator)->Abort(status);
        }
      }
      const std::string report = status.ok() ? "ran" : status.ToString();
      if (write(ends[1], report.data(), report.size()) < 0) _exit(2);
      _exit(status.ok() ? 0 : 1);
    }
    close(ends[1]);
    started.processes.push_back(process);
    started.pipes.push_back(ends[0]);
  }
  return started;
}

// Waits until all processes have ended. Returns their ends, by rank.
std::vector<Ended> AwaitRanks(const ForkedRanks& started) {
  std::vector<Ended> ended(started.processes.size());
  for (size_t r = 0; r < ended.size(); ++r) {
    char buffer[4096];
    for (ssize_t n; (n = read(started.pipes[r], buffer, sizeof(buffer))) > 0;) ended[r].report.append(buffer, n);
    close(started.pipes[r]);
    waitpid(started.processes[r], &ended[r].status, 0);
  }
  return ended;
}

std::vector<Ended> RunRanks(int ranks, const Communicator::Options& options,
                            const std::function<absl::Status(Communicator&)>& rank_main) {
  return AwaitRanks(StartRanks(ranks, options, rank_main));
}

void ExpectAllSucceeded(const std::vector<Ended>& ended, int ranks) {
  ASSERT_EQ(static_cast<int>(ended.size()), ranks);
  for (int r = 0; r < ranks; ++r) {
    EXPECT_EQ(ended[r].status, 0) << "rank " << r << " of " << ranks;
    EXPECT_EQ(ended[r].report, "ran") << "rank " << r << " of " << ranks;
  }
}

std::vector<int> NumbersOfRanks() { return TestsEverything() ? std::vector{1, 2, 3, 4, 7} : std::vector{2, 3}; }

class SharedMemoryConformance : public ::testing::TestWithParam<std::tuple<int, ConformanceCase>> {};

TEST_P(SharedMemoryConformance, AllRanksSucceed) {
  const auto& [ranks, test] = GetParam();
  ExpectAllSucceeded(RunRanks(ranks, test.options, test.run), ranks);
}

std::vector<std::tuple<int, ConformanceCase>> SharedMemoryTable() {
  std::vector<std::tuple<int, ConformanceCase>> table;
  for (int ranks : NumbersOfRanks()) {
    for (ConformanceCase& test : ComputingCases()) {
      if (ranks >= test.min_ranks) table.emplace_back(ranks, std::move(test));
    }
  }
  return table;
}

INSTANTIATE_TEST_SUITE_P(All, SharedMemoryConformance, ::testing::ValuesIn(SharedMemoryTable()), [](const auto& info) {
  return "SharedMemory" + std::to_string(std::get<0>(info.param)) + std::get<1>(info.param).name;
});

// Runs a case that waits with all numbers of ranks at once.
class SharedMemoryConformanceOfWaiting : public ::testing::TestWithParam<ConformanceCase> {};

TEST_P(SharedMemoryConformanceOfWaiting, AllRanksOfAllWorldsSucceed) {
  const ConformanceCase& test = GetParam();
  std::vector<ForkedRanks> worlds;
  for (int ranks : NumbersOfRanks()) {
    if (ranks >= test.min_ranks) worlds.push_back(StartRanks(ranks, test.options, test.run));
  }
  EXPECT_GE(worlds.size(), TestsEverything() ? 3u : 1u);
  for (const ForkedRanks& world : worlds)
    ExpectAllSucceeded(AwaitRanks(world), static_cast<int>(world.processes.size()));
}

INSTANTIATE_TEST_SUITE_P(All, SharedMemoryConformanceOfWaiting, ::testing::ValuesIn(WaitingCases()),
                         [](const auto& info) { return info.param.name; });

// ForkedRanks check if their peers are alive while these end.
TEST(FactsOfProcess, TellsAProcessThatEndsMeanwhile) {
  EXPECT_NE(FactsOfProcess(getpid())->start, 0u);
  for (int round = 0; round < (UnderSanitizer() ? 500 : NumCases(500)); ++round) {
    const pid_t process = fork();
    if (process == 0) _exit(0);
    std::thread reaper([process] { waitpid(process, nullptr, 0); });
    while (FactsOfProcess(process)->start != 0) {
    }
    while (kill(process, 0) == 0) EXPECT_EQ(FactsOfProcess(process)->start, 0u);
    reaper.join();
  }
}

// Kills rank 1 of 3 while the others wait for it. They name it within 5 s.
TEST(SharedMemory, DeadRankIsNamed) {
  const absl::Time begin = absl::Now();
  const std::vector<Ended> ended = RunRanks(3, {.timeout = absl::Minutes(5)}, [](Communicator& c) -> absl::Status {
    std::vector<float> x(1000);
    absl::Status status =
        c.Run(Collective::AllReduce(1000, DType::kF32, ReduceKind::kSum), x.data(), x.data(), {.label = "bucket 0"});
    if (!status.ok()) return status;
    if (c.rank() == 1) {
      absl::SleepFor(absl::Milliseconds(100));
      kill(getpid(), SIGKILL);
    }
    status =
        c.Run(Collective::AllReduce(1000, DType::kF32, ReduceKind::kSum), x.data(), x.data(), {.label = "bucket 1"});
    return absl::Status(status.code(), "seen: " + std::string(status.message()));
  });
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_TRUE(WIFSIGNALED(ended[1].status) && WTERMSIG(ended[1].status) == SIGKILL);
  for (int r : {0, 2}) {
    EXPECT_TRUE(absl::StrContains(ended[r].report, "seen: rank 1 on host ")) << ended[r].report;
    EXPECT_TRUE(absl::StrContains(ended[r].report, "died while rank ")) << ended[r].report;
    EXPECT_TRUE(absl::StrContains(ended[r].report, "all_reduce sum f32[1000] `bucket 1`")) << ended[r].report;
  }
}

// Rank 1 dies after beginning a collective and before the others have mapped its memory, which is then gone. The others
// have just checked that it is alive, when it was late, so they notice the missing memory first.
TEST(SharedMemory, DeadRankWhoseMemoryIsGoneIsNamed) {
  const std::vector<Ended> ended = RunRanks(3, {.timeout = absl::Minutes(5)}, [](Communicator& c) -> absl::Status {
    std::vector<float> x(100000);  // larger than earlier staged operands
    if (c.rank() == 1) absl::SleepFor(absl::Milliseconds(250));
    const auto processes = c.AllGatherBytes(std::to_string(getpid()), "processes");
    if (!processes.ok()) return processes.status();
    while (c.rank() != 1 && FactsOfProcess(std::stoi((*processes)[1]))->start != 0)
      absl::SleepFor(absl::Milliseconds(1));
    const auto ticket = c.Start(Collective::AllReduce(100000, DType::kF32, ReduceKind::kSum), x.data(), x.data(),
                                {.label = "bucket 0"});
    if (c.rank() == 1) kill(getpid(), SIGKILL);
    const absl::Status status = ticket.ok() ? c.Wait(*ticket) : ticket.status();
    return absl::Status(status.code(), "seen: " + std::string(status.message()));
  });
  for (int r : {0, 2}) {
    EXPECT_TRUE(absl::StrContains(ended[r].report, "seen: rank 1 on host ")) << ended[r].report;
    EXPECT_TRUE(absl::StrContains(ended[r].report, "died while rank ")) << ended[r].report;
  }
}

// A rank whose process exits, as after an uncaught exception, is treated like a dead one.
TEST(SharedMemory, RankThatExitsIsNamed) {
  const absl::Time begin = absl::Now();
  const std::vector<Ended> ended = RunRanks(2, {.timeout = absl::Minutes(5)}, [](Communicator& c) -> absl::Status {
    if (c.rank() == 0) _exit(3);
    return c.Barrier("step 7");
  });
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_TRUE(absl::StrContains(ended[1].report, "rank 0 on host ")) << ended[1].report;
  EXPECT_TRUE(absl::StrContains(ended[1].report, "barrier `step 7`")) << ended[1].report;
}

// A rank without free file descriptors cannot read /proc. It goes on waiting for a late peer and does not consider it
// dead.
TEST(SharedMemory, NoDescriptorsAreNoDeath) {
  const std::vector<Ended> ended = RunRanks(2, {.timeout = absl::Seconds(20)}, [](Communicator& c) -> absl::Status {
    absl::Status status = c.Barrier("before");
    if (!status.ok()) return status;
    if (c.rank() == 1) {
      absl::SleepFor(absl::Seconds(1));
      return c.Barrier("late");
    }
    rlimit few{.rlim_cur = 64, .rlim_max = 64};
    setrlimit(RLIMIT_NOFILE, &few);
    std::vector<int> all;
    for (int file; (file = dup(0)) >= 0;) all.push_back(file);
    const bool exhausted = errno == EMFILE;
    status = c.Barrier("late");
    for (int file : all) close(file);
    return exhausted ? status : absl::InternalError("descriptors are not exhausted");
  });
  for (int r : {0, 1}) EXPECT_EQ(ended[r].report, "ran") << "rank " << r;
}

// A process forked from a rank can end in any way and can do nothing with the communicator, which belongs to the rank.
TEST(SharedMemory, ForkedProcessesTouchNothing) {
  for (bool progress_thread : {false, true}) {
    const Communicator::Options options{.timeout = absl::Seconds(20), .progress_thread = progress_thread};
    const std::vector<Ended> ended = RunRanks(2, options, [](Communicator& c) -> absl::Status {
      std::vector<float> x(1000);
      auto ticket = c.Start(Collective::AllReduce(1000, DType::kF32, ReduceKind::kSum), x.data(), x.data(),
                            {.label = "in flight"});
      if (!ticket.ok()) return ticket.status();
      const pid_t process = fork();
      if (process == 0) {
        bool ok = absl::StrContains(c.Barrier("child").message(), "was forked from the one of rank");
        ok = ok && !c.Wait(*ticket).ok() && !c.Allocate(10, "child").ok() && !c.AllGatherBytes("x", "child").ok();
        c.Abort(absl::CancelledError("the child gives up"));
        c.~Communicator();  // as at the end of a process
        _exit(ok ? 7 : 8);
      }
      int how = 0;
      waitpid(process, &how, 0);
      if (!WIFEXITED(how) || WEXITSTATUS(how) != 7) return absl::InternalError("the child: " + std::to_string(how));
      absl::Status status = c.Wait(*ticket);
      return status.ok() ? c.Barrier("after") : status;
    });
    for (int r : {0, 1}) EXPECT_EQ(ended[r].report, "ran") << "rank " << r;
  }
}

// A process does not map the wrong segment if the descriptor of a closed segment is reused.
TEST(Segment, ANonceTellsItFromOthers) {
  auto segment = Segment::CreateShared(100);
  ASSERT_TRUE(segment.ok());
  const int descriptor = (*segment)->descriptor();
  const uint64_t nonce = (*segment)->nonce();
  ASSERT_TRUE(Segment::Open(getpid(), descriptor, nonce).ok());
  segment->reset();
  EXPECT_FALSE(Segment::Open(getpid(), descriptor, nonce).ok());
  auto other = Segment::CreateShared(100);
  ASSERT_TRUE(other.ok());
  ASSERT_EQ((*other)->descriptor(), descriptor);
  const absl::Status status = Segment::Open(getpid(), descriptor, nonce).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "is not the shared memory of process")) << status;
}

// The configurations of sanitizers in .bazelrc do both: they compile with a sanitizer, and shorten tests.
TEST(Sanitizers, AreCompiledInWhereTestsAreShortened) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_TRUE(UnderSanitizer());
#else
  EXPECT_FALSE(UnderSanitizer());
#endif
}

}  // namespace
}  // namespace lockstep
