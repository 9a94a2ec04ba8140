#include "core/collective_op.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(CollectiveOp, IsFoundByItsNameIfItMovesData) {
  int num_moving = 0;
  for (CollectiveOp op = {}; !CollectiveOpName(op).empty(); op = static_cast<CollectiveOp>(static_cast<int>(op) + 1)) {
    const bool moves = TraitsOf(op).moves_data;
    num_moving += moves;
    EXPECT_EQ(CollectiveOpFromName(CollectiveOpName(op)), moves ? std::optional(op) : std::nullopt);
  }
  EXPECT_GE(num_moving, 8);
  EXPECT_EQ(CollectiveOpFromName("all_reduce"), CollectiveOp::kAllReduce);
  EXPECT_EQ(CollectiveOpFromName("scatter"), CollectiveOp::kScatter);
  EXPECT_EQ(CollectiveOpFromName("barrier"), std::nullopt);
  EXPECT_EQ(CollectiveOpFromName("sum"), std::nullopt);
}

}  // namespace
}  // namespace lockstep
