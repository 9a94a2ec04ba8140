#include "core/collective_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace lockstep {
namespace {

using ::testing::ElementsAre;

// Returns the names of the collectives with a property.
std::vector<std::string_view> NamesWith(bool (*property)(const CollectiveTraits&)) {
  std::vector<std::string_view> names;
  for (const CollectiveOp op : CollectiveOpsWith(property)) names.push_back(CollectiveOpName(op));
  return names;
}

TEST(CollectiveOp, IsFoundByItsNameIfItMovesData) {
  int num_moving = 0;
  for (const CollectiveOp op : CollectiveOpsWith([](const CollectiveTraits&) { return true; })) {
    const bool moves = TraitsOf(op).moves_data;
    num_moving += moves;
    EXPECT_EQ(CollectiveOpFromName(CollectiveOpName(op)), moves ? std::optional(op) : std::nullopt);
  }
  EXPECT_GE(num_moving, 8);
  EXPECT_EQ(CollectiveOpFromName("all_reduce"), CollectiveOp::kAllReduce);
  EXPECT_EQ(CollectiveOpFromName("scatter"), CollectiveOp::kScatter);
  EXPECT_EQ(CollectiveOpFromName("barrier"), std::nullopt);
  EXPECT_EQ(CollectiveOpFromName("sum"), std::nullopt);
  EXPECT_EQ(CollectiveOpFromName(""), std::nullopt);
}

TEST(CollectiveOp, TraitsSayHowDataMoves) {
  SCOPED_TRACE("a new collective is to be added to the lists of its traits");
  EXPECT_THAT(NamesWith([](const CollectiveTraits& t) { return !t.moves_data; }), ElementsAre("barrier", "allocate"));
  EXPECT_THAT(NamesWith([](const CollectiveTraits& t) { return t.has_root(); }),
              ElementsAre("broadcast", "gather", "scatter"));
  EXPECT_THAT(NamesWith([](const CollectiveTraits& t) { return t.counts_slices(); }),
              ElementsAre("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"));
  EXPECT_THAT(NamesWith([](const CollectiveTraits& t) { return t.is_direct(); }),
              ElementsAre("all_to_all", "permute", "gather", "scatter"));
  EXPECT_THAT(NamesWith([](const CollectiveTraits& t) { return t.synchronizes(); }),
              ElementsAre("all_reduce", "all_gather", "reduce_scatter", "all_to_all"));
}

// A reduction to the root combines what a direct collective would only copy, and only the root waits for all ranks.
TEST(CollectiveOp, AReductionToTheRootIsNotDirect) {
  CollectiveTraits traits;
  traits.to_root = true;
  EXPECT_TRUE(traits.is_direct());
  traits.reduces = true;
  EXPECT_FALSE(traits.is_direct() || traits.synchronizes());
  traits.to_root = false;
  EXPECT_TRUE(traits.synchronizes());
}

}  // namespace
}  // namespace lockstep
