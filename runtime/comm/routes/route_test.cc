#include "runtime/comm/routes/route.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/routes/route_choice.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

Collective F32(CollectiveOp op, int64_t bytes) { return {.op = op, .dtype = DType::kF32, .counts = {bytes / 4}}; }

Route Of(CollectiveOp op, int64_t bytes, const RouteOptions& options) {
  return RouteOf(F32(op, bytes), options.groups * options.largest_group, options);
}

constexpr int64_t kTiny = 1024, kSmall = 4096, kLarge = 64 << 20;

std::vector<CollectiveOp> ReducingOps() {
  return CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.reduces; });
}

TEST(RouteOf, SmallReductionsGoToAllAndLargeOnesToOwners) {
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, kSmall, {.groups = 2}), Route::kAll);
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, kTiny, {.groups = 16}), Route::kAll);
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, 64 << 10, {.groups = 16}), Route::kOwner)
      << "15 times as many bytes are not few";
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, kLarge, {.groups = 2}), Route::kAll) << "the same bytes as by owners";
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, kLarge, {.groups = 3}), Route::kOwner);
  EXPECT_EQ(Of(CollectiveOp::kReduceScatter, kSmall, {.groups = 2}), Route::kOwner) << "nobody else wants it";
}

TEST(RouteOf, OfTwoGroupsNoCostsDecide) {
  for (const double latency : {0.0, 1e-6, 1.0}) {
    for (const double byte : {1e-12, 1e-9, 1.0}) {
      const RoutePolicy policy{.costs = {.latency = latency, .byte_to_all = 2 * byte, .byte_to_neighbour = byte}};
      for (const int64_t bytes : {int64_t{4}, int64_t{12}, kSmall, kLarge}) {
        EXPECT_EQ(Of(CollectiveOp::kAllReduce, bytes, {.groups = 2, .policy = policy}), Route::kAll);
        EXPECT_EQ(Of(CollectiveOp::kBroadcast, bytes, {.groups = 2, .policy = policy}), Route::kAll);
        EXPECT_EQ(Of(CollectiveOp::kAllGather, bytes, {.groups = 2, .policy = policy}), Route::kAll);
        EXPECT_EQ(Of(CollectiveOp::kReduceScatter, bytes, {.groups = 2, .policy = policy}), Route::kOwner);
      }
    }
  }
}

TEST(RouteOf, ManyHostsSwapHalvesWhereMessagesCost) {
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, 64 << 10, {.groups = 1024}), Route::kHalving);
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, 64 << 10, {.groups = 4}), Route::kOwner);
}

// A network on which many senders to one receiver are slow.
TEST(RouteOf, GoesAroundTheRingWhereNeighboursAreQuicker) {
  const RoutePolicy policy{.costs = {.byte_to_all = 4e-9, .byte_to_neighbour = 1e-9}};
  for (const CollectiveOp op : ReducingOps()) EXPECT_EQ(Of(op, kLarge, {.groups = 6, .policy = policy}), Route::kRing);
  EXPECT_EQ(Of(CollectiveOp::kAllGather, kLarge, {.groups = 6, .policy = policy}), Route::kRing);
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, kTiny, {.groups = 6, .policy = policy}), Route::kAll) << "ten messages";
  for (const CollectiveOp op : ReducingOps())
    EXPECT_EQ(Of(op, kLarge, {.groups = 6, .in_rank_order = true, .policy = policy}), Route::kOwner);
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, kLarge, {.groups = 2, .policy = policy}), Route::kAll)
      << "both are neighbours";
}

// Each rank contributes all slices of a reduce_scatter, and receives all slices of an all_gather: 15,000 bytes justify
// two more messages here.
TEST(RouteOf, CountsTheSlicesOfAllRanks) {
  const NetworkCosts costs{.latency = 1e-5, .message = 0, .byte_to_all = 4e-9, .byte_to_neighbour = 1e-9};
  const RouteOptions options{.groups = 4, .policy = {.costs = costs}};
  EXPECT_EQ(Of(CollectiveOp::kReduceScatter, 11'200 / 4, options), Route::kOwner);
  EXPECT_EQ(Of(CollectiveOp::kReduceScatter, 19'200 / 4, options), Route::kRing);
  EXPECT_EQ(Of(CollectiveOp::kAllGather, 8'000 / 4, options), Route::kAll);
  EXPECT_EQ(Of(CollectiveOp::kAllGather, 19'200 / 4, options), Route::kRing)
      << "nothing is added: 9,000 bytes are enough";
}

// So small differences between measurements seldom change bits.
TEST(RouteOf, AnotherOrderOfAdditionsHasToBeAQuarterQuicker) {
  const auto with = [](double byte_to_all) {
    return RouteOptions{.groups = 6, .policy = {.costs = {.byte_to_all = byte_to_all, .byte_to_neighbour = 1e-9}}};
  };
  EXPECT_EQ(Of(CollectiveOp::kReduceScatter, kLarge, with(1.3e-9)), Route::kOwner);
  EXPECT_EQ(Of(CollectiveOp::kReduceScatter, kLarge, with(1.4e-9)), Route::kRing);
  EXPECT_EQ(Of(CollectiveOp::kAllGather, kLarge, with(1.1e-9)), Route::kRing) << "nothing is added";
}

TEST(RouteOf, RankOrderNeedsTheChainWhereGroupsHaveSeveralRanks) {
  for (const CollectiveOp op : ReducingOps()) {
    for (const int64_t bytes : {kSmall, kLarge}) {
      EXPECT_EQ(Of(op, bytes, {.groups = 3, .largest_group = 2, .in_rank_order = true}), Route::kChain);
      EXPECT_NE(Of(op, bytes, {.groups = 3, .largest_group = 1, .in_rank_order = true}), Route::kChain);
      EXPECT_NE(Of(op, bytes, {.groups = 3, .largest_group = 2}), Route::kChain);
    }
  }
}

TEST(RouteOf, TakesWhatIsPreferredWhereItCan) {
  for (const Route route : {Route::kChain, Route::kOwner, Route::kAll, Route::kRing, Route::kHalving}) {
    EXPECT_EQ(Of(CollectiveOp::kAllReduce, kSmall, {.groups = 3, .policy = {.preferred = route}}), route);
    EXPECT_EQ(Of(CollectiveOp::kAllToAll, kSmall, {.groups = 3, .policy = {.preferred = route}}), Route::kPair);
    EXPECT_EQ(Of(CollectiveOp::kBarrier, 0, {.groups = 3, .policy = {.preferred = route}}), Route::kAll);
  }
  EXPECT_EQ(Of(CollectiveOp::kReduceScatter, kLarge, {.groups = 3, .policy = {.preferred = Route::kHalving}}),
            Route::kOwner);
  const RouteOptions ordered{
      .groups = 3, .largest_group = 2, .in_rank_order = true, .policy = {.preferred = Route::kRing}};
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, kLarge, ordered), Route::kChain);
  RouteOptions measured = ordered;
  measured.policy.in_any_order = true;
  EXPECT_EQ(Of(CollectiveOp::kAllReduce, kLarge, measured), Route::kRing);
}

TEST(RouteOf, CopiesGoFromTheirSourceAndLargeOnesOfOneAlongTheChain) {
  EXPECT_EQ(Of(CollectiveOp::kAllGather, kLarge, {.groups = 16}), Route::kAll);
  EXPECT_EQ(Of(CollectiveOp::kBroadcast, kSmall, {.groups = 4}), Route::kAll);
  EXPECT_EQ(Of(CollectiveOp::kBroadcast, kLarge, {.groups = 2}), Route::kAll);
  EXPECT_EQ(Of(CollectiveOp::kBroadcast, kLarge, {.groups = 4}), Route::kChain) << "its source sends it once";
}

TEST(RouteOf, WhatOneRankHasForAnotherGoesThereAlone) {
  for (const CollectiveOp op : CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.is_direct(); }))
    EXPECT_EQ(Of(op, kLarge, {.groups = 4, .largest_group = 2, .in_rank_order = true}), Route::kPair);
}

TEST(RouteOf, WhatMovesNothingIsSaidToAllUnlessTheyAreMany) {
  for (const CollectiveOp op : {CollectiveOp::kBarrier, CollectiveOp::kAllReduce}) {
    EXPECT_EQ(RouteOf(F32(op, 0), 16, {.groups = 16}), Route::kAll);
    EXPECT_EQ(RouteOf(F32(op, 0), 1024, {.groups = 1024}), Route::kChain);
  }
}

TEST(RoutesBySize, BeginWhereTheRouteChanges) {
  const RouteOptions options{.groups = 16};
  const std::vector<RouteRange> ranges = RoutesBySize(CollectiveOp::kAllReduce, options);
  ASSERT_GE(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].from, 0u);
  for (size_t i = 1; i < ranges.size(); ++i) {
    EXPECT_EQ(Of(CollectiveOp::kAllReduce, static_cast<int64_t>(ranges[i].from), options), ranges[i].route);
    EXPECT_EQ(Of(CollectiveOp::kAllReduce, static_cast<int64_t>(ranges[i].from) - 4, options), ranges[i - 1].route);
  }
  EXPECT_EQ(RoutesBySize(CollectiveOp::kAllReduce, {.groups = 2}).size(), 1u);
}

// Otherwise groups whose peers all call the same collective would wait instead of detecting the difference.
TEST(PeerGroups, AreMutualAndHaveTheNextGroups) {
  for (const Route route : kRoutes) {
    for (const int groups : {2, 3, 4, 6, 7, 16}) {
      for (int g = 0; g < groups; ++g) {
        const std::vector<int> peers = PeerGroups(route, g, groups);
        EXPECT_TRUE(std::is_sorted(peers.begin(), peers.end()));
        if (g > 0) {
          EXPECT_THAT(peers, Contains(g - 1));
        }
        for (const int peer : peers) EXPECT_THAT(PeerGroups(route, peer, groups), Contains(g));
      }
    }
  }
  EXPECT_THAT(PeerGroups(Route::kChain, 0, 8), ElementsAre(1));
  EXPECT_THAT(PeerGroups(Route::kRing, 0, 8), ElementsAre(1, 7));
  EXPECT_THAT(PeerGroups(Route::kHalving, 0, 8), ElementsAre(1, 2, 4));
  // 0 and 1 form a pair, and so do 2 and 3: 1, 3, 4 and 5 take part.
  EXPECT_THAT(PeerGroups(Route::kHalving, 1, 6), ElementsAre(0, 2, 3, 4));
}

MATCHER_P2(Takes, messages, bytes, "") { return arg.messages == messages && arg.bytes == static_cast<uint64_t>(bytes); }

TEST(TrafficOf, IsWhatTheTableSays) {
  constexpr uint64_t kBytes = 4000;
  EXPECT_THAT(TrafficOf(Route::kAll, CollectiveOp::kAllReduce, kBytes, 4), Takes(1, 3 * kBytes));
  EXPECT_THAT(TrafficOf(Route::kOwner, CollectiveOp::kAllReduce, kBytes, 4), Takes(2, 2 * kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kOwner, CollectiveOp::kReduceScatter, kBytes, 4), Takes(1, kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kChain, CollectiveOp::kAllReduce, kBytes, 4), Takes(6, 2 * kBytes));
  EXPECT_THAT(TrafficOf(Route::kChain, CollectiveOp::kAllReduce, kBytes, 2), Takes(2, kBytes))
      << "nobody is in the middle";
  EXPECT_THAT(TrafficOf(Route::kChain, CollectiveOp::kBroadcast, kBytes, 4), Takes(3, kBytes));
  EXPECT_THAT(TrafficOf(Route::kRing, CollectiveOp::kAllReduce, kBytes, 4), Takes(6, 2 * kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kRing, CollectiveOp::kReduceScatter, kBytes, 4), Takes(3, kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kRing, CollectiveOp::kAllGather, kBytes, 4), Takes(3, kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kHalving, CollectiveOp::kAllReduce, kBytes, 4), Takes(4, 2 * kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kHalving, CollectiveOp::kAllReduce, kBytes, 5), Takes(6, 2 * kBytes * 3 / 4 + kBytes));
  EXPECT_THAT(TrafficOf(Route::kAll, CollectiveOp::kAllGather, kBytes, 4), Takes(1, kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kAll, CollectiveOp::kBarrier, 0, 4), Takes(1, 0));
  EXPECT_THAT(TrafficOf(Route::kPair, CollectiveOp::kAllToAll, kBytes, 4, 2), Takes(1, 2 * kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kPair, CollectiveOp::kPermute, kBytes, 4, 2), Takes(1, 2 * kBytes));
  EXPECT_THAT(TrafficOf(Route::kPair, CollectiveOp::kGather, kBytes, 4, 2), Takes(1, kBytes / 4));
  EXPECT_THAT(TrafficOf(Route::kPair, CollectiveOp::kScatter, kBytes, 4, 2), Takes(1, kBytes * 3 / 4));
  EXPECT_THAT(TrafficOf(Route::kAll, CollectiveOp::kAllReduce, kBytes, 1), Takes(0, 0)) << "a host alone";
}

// The inputs of the choice besides the bytes: the messages that the busiest rank sends, and the time until the last
// group of a chain receives the first chunk.
TEST(TrafficOf, CountsTheMessagesThatARankSendsAndTheFillingOfAChain) {
  constexpr uint64_t kBytes = 16 << 20;
  const double share = 3.0 / 4, chunks = static_cast<double>(kBytes) / ChunkLimitsOf(Route::kRing, kBytes, 4, 1).most;
  EXPECT_DOUBLE_EQ(TrafficOf(Route::kRing, CollectiveOp::kReduceScatter, kBytes, 4).sent, share * chunks);
  EXPECT_DOUBLE_EQ(TrafficOf(Route::kRing, CollectiveOp::kAllReduce, kBytes, 4).sent, 2 * share * chunks);
  EXPECT_DOUBLE_EQ(TrafficOf(Route::kOwner, CollectiveOp::kReduceScatter, kBytes, 4).sent, share * chunks);
  EXPECT_DOUBLE_EQ(TrafficOf(Route::kOwner, CollectiveOp::kAllReduce, kBytes, 4).sent, 2 * share * chunks);
  EXPECT_DOUBLE_EQ(TrafficOf(Route::kAll, CollectiveOp::kAllReduce, 4, 4).sent, 3);
  const uint64_t chunk = ChunkLimitsOf(Route::kChain, kBytes, 4, 1).most;
  EXPECT_EQ(TrafficOf(Route::kChain, CollectiveOp::kBroadcast, kBytes, 2).filling, 0u) << "both have the chunk at once";
  EXPECT_EQ(TrafficOf(Route::kChain, CollectiveOp::kBroadcast, kBytes, 4).filling, 2 * chunk);
  EXPECT_EQ(TrafficOf(Route::kChain, CollectiveOp::kBroadcast, 100, 4).filling, 200u)
      << "which is no larger than all of it";
}

TEST(Seconds, OfThreeGroupsManySendToOne) {
  const Traffic traffic{.messages = 2, .bytes = 100, .sent = 3, .filling = 10};
  const NetworkCosts costs{.latency = 1000, .message = 10000, .byte_to_all = 2, .byte_to_neighbour = 1};
  EXPECT_EQ(Seconds(traffic, Route::kOwner, 2, costs), 32110) << "both are neighbours";
  EXPECT_EQ(Seconds(traffic, Route::kOwner, 3, costs), 32220);
  EXPECT_EQ(Seconds(traffic, Route::kRing, 3, costs), 32110);
}

TEST(TrafficOf, PartialResultsAreWiderWhereTheyAreNotRounded) {
  EXPECT_EQ(PartialSize(Route::kOwner, DType::kBF16, ReduceKind::kSum), 2u);
  EXPECT_EQ(PartialSize(Route::kRing, DType::kBF16, ReduceKind::kSum), 4u);
  EXPECT_EQ(PartialSize(Route::kOwner, DType::kF16, ReduceKind::kSum), 4u);
  EXPECT_THAT(TrafficOf(Route::kRing, CollectiveOp::kAllReduce, 4000, 4, 1, 2), Takes(6, 3 * 4000 * 3 / 4));
}

}  // namespace
}  // namespace lockstep
