#include "runtime/comm/routes/cost.h"

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/check.h"
#include "gtest/gtest.h"
#include "runtime/comm/in_process.h"

namespace lockstep {
namespace {

using CostWorld = std::vector<std::unique_ptr<Communicator>>;
using Costs = std::vector<SizeCost>;

// The result of each rank.
template <typename T>
std::vector<absl::StatusOr<T>> OnRanks(const CostWorld& world,
                                       const std::function<absl::StatusOr<T>(Communicator&)>& body) {
  std::vector<absl::StatusOr<T>> of_ranks(world.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] { of_ranks[rank] = body(*world[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return of_ranks;
}

CostWorld Groups(int ranks, const std::vector<int>& begins) {
  absl::StatusOr<CostWorld> world = CreateInProcessGroups(ranks, begins, {.timeout = absl::Seconds(60)});
  LOCKSTEP_CHECK(world.ok()) << world.status();
  return *std::move(world);
}

void ExpectTable(const std::vector<SizeCost>& costs) {
  ASSERT_GE(costs.size(), 2u);
  EXPECT_GT(costs[0].nanoseconds, 0);
  for (size_t i = 1; i < costs.size(); ++i) {
    EXPECT_GT(costs[i].bytes, costs[i - 1].bytes);
    EXPECT_GE(costs[i].nanoseconds, costs[i - 1].nanoseconds);
  }
}

TEST(MeasureCosts, AllRanksGetTheSameTable) {
  const auto of_ranks =
      OnRanks<Costs>(Groups(3, {0, 1, 2}), [](Communicator& world) { return MeasureCosts(world, world); });
  ASSERT_EQ(of_ranks.size(), 3u);
  for (const absl::StatusOr<Costs>& costs : of_ranks) {
    ASSERT_TRUE(costs.ok()) << costs.status();
    ExpectTable(*costs);
    EXPECT_EQ(*costs, *of_ranks[0]);
  }
}

// Two pairs measure at once, and all four ranks get the slowest times.
TEST(MeasureCosts, PairsMeasureAtOnce) {
  const auto of_ranks = OnRanks<Costs>(Groups(4, {0, 2}), [](Communicator& world) -> absl::StatusOr<Costs> {
    ASSIGN_OR_RETURN(const auto pair, world.Split(world.rank() % 2, "pair"));
    return MeasureCosts(*pair, world);
  });
  ASSERT_EQ(of_ranks.size(), 4u);
  for (const absl::StatusOr<Costs>& costs : of_ranks) {
    ASSERT_TRUE(costs.ok()) << costs.status();
    ExpectTable(*costs);
    EXPECT_EQ(*costs, *of_ranks[0]);
  }
}

TEST(MeasureCosts, AxesWithinAHostHaveNone) {
  const Mesh mesh({{"data", 2}, {"alone", 1}, {"model", 2}});
  const auto of_ranks =
      OnRanks<std::vector<Costs>>(Groups(4, {0}), [&](Communicator& world) { return MeasureCosts(world, mesh); });
  ASSERT_EQ(of_ranks.size(), 4u);
  for (const absl::StatusOr<std::vector<Costs>>& costs : of_ranks) {
    ASSERT_TRUE(costs.ok()) << costs.status();
    EXPECT_EQ(*costs, std::vector<Costs>(3));
  }
}

TEST(MeasureCosts, AMeshOfOtherRanks) {
  const Mesh mesh({{"data", 3}});
  const auto of_ranks =
      OnRanks<std::vector<Costs>>(Groups(2, {0, 1}), [&](Communicator& world) { return MeasureCosts(world, mesh); });
  ASSERT_EQ(of_ranks.size(), 2u);
  for (const absl::StatusOr<std::vector<Costs>>& costs : of_ranks) {
    ASSERT_EQ(costs.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(costs.status().message(), "the mesh {data=3} needs 3 ranks, and the world has 2");
  }
}

}  // namespace
}  // namespace lockstep
