#include "runtime/comm/route.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

OpDescription F32(Opcode opcode, int64_t bytes) {
  return {.opcode = opcode, .dtype = static_cast<uint8_t>(DType::kF32), .count = bytes / 4};
}

Route Of(Opcode opcode, int64_t bytes, const RouteOptions& options) {
  return RouteOf(F32(opcode, bytes), options.groups * options.largest_group, options);
}

constexpr int64_t kSmall = 4096, kLarge = 64 << 20;

TEST(RouteOf, SmallReductionsGoToAllAndLargeOnesToOwners) {
  EXPECT_EQ(Of(Opcode::kAllReduce, kSmall, {.groups = 2}), Route::kAll);
  EXPECT_EQ(Of(Opcode::kAllReduce, kSmall, {.groups = 16}), Route::kOwner) << "15 times as many bytes are not few";
  EXPECT_EQ(Of(Opcode::kAllReduce, 1024, {.groups = 16}), Route::kAll);
  EXPECT_EQ(Of(Opcode::kAllReduce, kLarge, {.groups = 2}), Route::kAll) << "the same bytes as by owners";
  EXPECT_EQ(Of(Opcode::kAllReduce, kLarge, {.groups = 3}), Route::kOwner);
  EXPECT_EQ(Of(Opcode::kReduceScatter, kSmall, {.groups = 2}), Route::kOwner) << "nobody else wants it";
}

TEST(RouteOf, RankOrderNeedsTheChainWhereGroupsHaveSeveralRanks) {
  for (const Opcode opcode : {Opcode::kAllReduce, Opcode::kReduceScatter}) {
    for (const int64_t bytes : {kSmall, kLarge}) {
      EXPECT_EQ(Of(opcode, bytes, {.groups = 3, .largest_group = 2, .in_rank_order = true}), Route::kChain);
      EXPECT_NE(Of(opcode, bytes, {.groups = 3, .largest_group = 1, .in_rank_order = true}), Route::kChain);
      EXPECT_NE(Of(opcode, bytes, {.groups = 3, .largest_group = 2}), Route::kChain);
    }
  }
}

TEST(RouteOf, CopiesGoFromTheirSourceAndLargeOnesOfOneAlongTheChain) {
  EXPECT_EQ(Of(Opcode::kAllGather, kLarge, {.groups = 16}), Route::kAll);
  EXPECT_EQ(Of(Opcode::kBroadcast, kSmall, {.groups = 4}), Route::kAll);
  EXPECT_EQ(Of(Opcode::kBroadcast, kLarge, {.groups = 2}), Route::kAll);
  EXPECT_EQ(Of(Opcode::kBroadcast, kLarge, {.groups = 4}), Route::kChain) << "its source sends it once";
}

TEST(RouteOf, WhatOneRankHasForAnotherGoesThereAlone) {
  for (const Opcode opcode : {Opcode::kAllToAll, Opcode::kPermute, Opcode::kGather, Opcode::kScatter})
    EXPECT_EQ(Of(opcode, kLarge, {.groups = 4, .largest_group = 2, .in_rank_order = true}), Route::kPair);
}

TEST(RouteOf, WhatMovesNothingIsSaidToAllUnlessTheyAreMany) {
  OpDescription compared = F32(Opcode::kAllReduce, kLarge);
  compared.compared_only = true;
  for (const OpDescription& d : {F32(Opcode::kBarrier, 0), compared}) {
    EXPECT_EQ(RouteOf(d, 16, {.groups = 16}), Route::kAll);
    EXPECT_EQ(RouteOf(d, 1024, {.groups = 1024}), Route::kChain);
  }
}

MATCHER_P2(Takes, messages, bytes, "") { return arg.messages == messages && arg.bytes == static_cast<uint64_t>(bytes); }

TEST(TravelOf, IsWhatTheTableSays) {
  constexpr uint64_t kBytes = 4000;
  EXPECT_THAT(TravelOf(Route::kAll, Opcode::kAllReduce, kBytes, 4), Takes(1, 3 * kBytes));
  EXPECT_THAT(TravelOf(Route::kOwner, Opcode::kAllReduce, kBytes, 4), Takes(2, 2 * kBytes * 3 / 4));
  EXPECT_THAT(TravelOf(Route::kOwner, Opcode::kReduceScatter, kBytes, 4), Takes(1, kBytes * 3 / 4));
  EXPECT_THAT(TravelOf(Route::kChain, Opcode::kAllReduce, kBytes, 4), Takes(6, 2 * kBytes));
  EXPECT_THAT(TravelOf(Route::kChain, Opcode::kBroadcast, kBytes, 4), Takes(3, kBytes));
  EXPECT_THAT(TravelOf(Route::kAll, Opcode::kAllGather, kBytes, 4), Takes(1, kBytes * 3 / 4));
  EXPECT_THAT(TravelOf(Route::kAll, Opcode::kBarrier, 0, 4), Takes(1, 0));
  EXPECT_THAT(TravelOf(Route::kPair, Opcode::kAllToAll, kBytes, 4, 2), Takes(1, 2 * kBytes * 3 / 4));
  EXPECT_THAT(TravelOf(Route::kPair, Opcode::kPermute, kBytes, 4, 2), Takes(1, 2 * kBytes));
  EXPECT_THAT(TravelOf(Route::kPair, Opcode::kGather, kBytes, 4, 2), Takes(1, kBytes / 4));
  EXPECT_THAT(TravelOf(Route::kPair, Opcode::kScatter, kBytes, 4, 2), Takes(1, kBytes * 3 / 4));
  EXPECT_THAT(TravelOf(Route::kAll, Opcode::kAllReduce, kBytes, 1), Takes(0, 0)) << "a host alone";
}

}  // namespace
}  // namespace lockstep
