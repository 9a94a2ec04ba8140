// Runs the conformance suite over ranks that are threads: alone, with a progress thread, and in groups that exchange
// messages. (Ranks that are processes: shared_memory_test.cc and mpi_test.sh.)

#include "runtime/comm/in_process.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "bazel/num_cases.h"
#include "gtest/gtest.h"
#include "runtime/comm/conformance/cases.h"
#include "runtime/comm/conformance/watchdog.h"

namespace lockstep {
namespace {

enum class World { kInProcess, kInProcessWithThread, kGroups, kGroupsInRankOrder, kGroupsByRing, kGroupsByHalving };

std::vector<int> GroupBegins(int ranks) {
  switch (ranks) {
    case 2: return {0, 1};
    case 3: return {0, 2};
    case 4: return {0, 1, 2};  // 1 + 1 + 2
    case 7: return {0, 3, 5};  // 3 + 2 + 2
    default: return {0};
  }
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> MakeWorld(World world, int ranks,
                                                                     Communicator::Options options) {
  options.in_rank_order = world == World::kGroupsInRankOrder;
  RoutePolicy policy;
  if (world == World::kGroupsByRing) policy.preferred = Route::kRing;
  if (world == World::kGroupsByHalving) policy.preferred = Route::kHalving;
  if (world != World::kInProcess && world != World::kInProcessWithThread)
    return CreateInProcessGroups(ranks, GroupBegins(ranks), options, policy);
  options.progress_thread = world == World::kInProcessWithThread;
  return CreateInProcess(ranks, options);
}

std::string Name(World kind, int ranks) {
  const char* const worlds[] = {"InProcess",         "InProcessWithThread", "Groups",
                                "GroupsInRankOrder", "GroupsByRing",        "GroupsByHalving"};
  return worlds[static_cast<int>(kind)] + std::to_string(ranks);
}

// Returns the worlds to test. Without `make test-everything`, only those that differ from all others.
std::vector<std::pair<World, int>> Worlds() {
  if (!TestsEverything()) {
    return {{World::kInProcess, 1},    {World::kInProcess, 3},      {World::kInProcessWithThread, 2},
            {World::kGroups, 2},       {World::kGroups, 7},         {World::kGroupsInRankOrder, 3},
            {World::kGroupsByRing, 4}, {World::kGroupsByHalving, 7}};
  }
  std::vector<std::pair<World, int>> worlds;
  for (World kind : {World::kInProcess, World::kInProcessWithThread, World::kGroups, World::kGroupsInRankOrder,
                     World::kGroupsByRing, World::kGroupsByHalving}) {
    for (int ranks : {1, 2, 3, 4, 7}) {
      if (kind == World::kGroups && ranks == 1) continue;
      if (kind == World::kGroupsInRankOrder && ranks != 3 && ranks != 7) continue;  // groups of several ranks
      // Each of these has three groups.
      if ((kind == World::kGroupsByRing || kind == World::kGroupsByHalving) && ranks < 4) continue;
      if (kind == World::kInProcessWithThread && ranks != 2 && ranks != 3) continue;
      worlds.emplace_back(kind, ranks);
    }
  }
  return worlds;
}

// Runs a case on all ranks of a world, one thread each, and counts them.
void RunAllRanks(World kind, int ranks, const ConformanceCase& test) {
  SCOPED_TRACE(Name(kind, ranks));
  auto world = MakeWorld(kind, ranks, test.options);
  ASSERT_TRUE(world.ok()) << world.status();
  std::atomic<int> ran{0};
  std::vector<absl::Status> results(ranks);
  std::vector<std::thread> threads;
  Watchdog watchdog;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r, communicator = std::move((*world)[r])]() mutable {
      watchdog.Begin(r, test.name);
      EXPECT_EQ(communicator->rank(), r);
      EXPECT_EQ(communicator->size(), ranks);
      results[r] = test.run(*communicator);
      if (!results[r].ok()) communicator->Abort(results[r]);
      communicator.reset();
      watchdog.End(r);
      ++ran;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, ranks);
  for (int r = 0; r < ranks; ++r) EXPECT_TRUE(results[r].ok()) << "rank " << r << ": " << results[r];
}

class Conformance : public ::testing::TestWithParam<std::tuple<World, int, ConformanceCase>> {};

TEST_P(Conformance, AllRanksSucceed) {
  const auto& [kind, ranks, test] = GetParam();
  RunAllRanks(kind, ranks, test);
}

std::vector<std::tuple<World, int, ConformanceCase>> Table() {
  std::vector<std::tuple<World, int, ConformanceCase>> table;
  for (const auto& [kind, ranks] : Worlds()) {
    for (ConformanceCase& test : ComputingCases()) {
      if (ranks >= test.min_ranks) table.emplace_back(kind, ranks, std::move(test));
    }
  }
  return table;
}

INSTANTIATE_TEST_SUITE_P(All, Conformance, ::testing::ValuesIn(Table()), [](const auto& info) {
  return Name(std::get<0>(info.param), std::get<1>(info.param)) + std::get<2>(info.param).name;
});

// Runs a case that waits, in all worlds at once.
class ConformanceOfWaiting : public ::testing::TestWithParam<ConformanceCase> {};

TEST_P(ConformanceOfWaiting, AllRanksOfAllWorldsSucceed) {
  const ConformanceCase& test = GetParam();
  std::vector<std::thread> worlds;
  for (const auto& [kind, ranks] : Worlds()) {
    if (ranks >= test.min_ranks) worlds.emplace_back(RunAllRanks, kind, ranks, std::cref(test));
  }
  EXPECT_GE(worlds.size(), TestsEverything() ? 7u : 5u);
  for (std::thread& world : worlds) world.join();
}

INSTANTIATE_TEST_SUITE_P(All, ConformanceOfWaiting, ::testing::ValuesIn(WaitingCases()),
                         [](const auto& info) { return info.param.name; });

// An abort while the rank's own thread works on a chunk. Some of many rounds hit that moment.
TEST(InProcessWithThread, AbortReleasesOperands) {
  const std::vector<ConformanceCase> cases = ConformanceCases();
  const auto test = std::find_if(cases.begin(), cases.end(),
                                 [](const auto& each) { return each.name == "OperandsAreFreeAfterAnAbort"; });
  ASSERT_NE(test, cases.end());
  // The thread sanitizer detects the race in each round, whatever its timing.
  const int rounds = TestsEverything() ? 150 : 50;
  for (int round = 0; round < rounds; ++round) {
    auto world = MakeWorld(World::kInProcessWithThread, 2, test->options);
    ASSERT_TRUE(world.ok());
    std::thread other([&] { EXPECT_EQ(test->run(*(*world)[1]), absl::OkStatus()); });
    EXPECT_EQ(test->run(*(*world)[0]), absl::OkStatus());
    other.join();
  }
}

TEST(InProcess, MemoryOutlivesItsCommunicator) {
  auto single = CreateSingle();
  ASSERT_TRUE(single.ok());
  EXPECT_EQ((*single)->size(), 1);
  EXPECT_EQ((*single)->transport(), "single");
  auto memory = (*single)->Allocate(1000, "memory");
  ASSERT_TRUE(memory.ok());
  single->reset();
  (*memory)->data()[999] = std::byte{1};
}

// A communicator made by Split works on after its parent is destroyed.
TEST(InProcess, PartsOutliveTheirWorld) {
  for (World kind : {World::kInProcess, World::kGroups}) {
    auto world = MakeWorld(kind, 4, {.timeout = absl::Seconds(20)});
    ASSERT_TRUE(world.ok());
    std::vector<std::thread> threads;
    for (int r = 0; r < 4; ++r) {
      threads.emplace_back([&, r] {
        auto part = (*world)[r]->Split(r / 2, "halves");
        ASSERT_TRUE(part.ok()) << part.status();
        EXPECT_EQ((*world)[r]->Barrier("last"), absl::OkStatus());
        (*world)[r].reset();
        for (int i = 0; i < 20; ++i) EXPECT_EQ((*part)->Barrier("part"), absl::OkStatus());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(InProcess, NeedsARank) { EXPECT_FALSE(CreateInProcess(0).ok()); }

}  // namespace
}  // namespace lockstep
