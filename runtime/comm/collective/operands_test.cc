// Tests which operands CheckOperands accepts.

#include "runtime/comm/collective/operands.h"

#include <cstddef>
#include <vector>

#include "core/dtype.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kCount = 10;  // 40 bytes

class CheckOperandsTest : public testing::Test {
 protected:
  // The operands of a rank of two begin at these bytes of one memory.
  bool Accepts(const Collective& collective, size_t input, size_t output, int rank = 0) {
    return CheckOperands(collective, memory_ + input, memory_ + output, {.label = "x"}, rank, 2).ok();
  }

  std::byte memory_[1024];
};

TEST_F(CheckOperandsTest, OperandsOfOneSizeAreTheSameOrApart) {
  const Collective reduce = Collective::AllReduce(kCount, DType::kF32, ReduceKind::kSum);
  EXPECT_TRUE(Accepts(reduce, 0, 0) && Accepts(reduce, 0, 40) && Accepts(reduce, 40, 0));
  EXPECT_FALSE(Accepts(reduce, 0, 36) || Accepts(reduce, 36, 0));
  const Collective permute = Collective::Permute(kCount, DType::kF32, std::vector<RankPair>{{0, 1}});
  EXPECT_TRUE(Accepts(permute, 0, 40));
  EXPECT_FALSE(Accepts(permute, 0, 0));
}

TEST_F(CheckOperandsTest, AGatheredSliceMayBeInItsPlace) {
  const Collective gather = Collective::AllGather(kCount, DType::kF32);
  EXPECT_TRUE(Accepts(gather, 0, 0, 0) && Accepts(gather, 40, 0, 1));
  EXPECT_FALSE(Accepts(gather, 0, 0, 1) || Accepts(gather, 40, 0, 0));
  EXPECT_TRUE(Accepts(gather, 80, 0) && Accepts(gather, 0, 40));
  EXPECT_FALSE(Accepts(gather, 76, 0) || Accepts(gather, 4, 40));
  EXPECT_FALSE(Accepts(Collective::Gather(kCount, DType::kF32, 0), 0, 0));
}

TEST_F(CheckOperandsTest, AScatteredSliceMayBeInItsPlace) {
  const Collective scatter = Collective::ReduceScatter(kCount, DType::kF32, ReduceKind::kSum);
  EXPECT_TRUE(Accepts(scatter, 0, 0, 0) && Accepts(scatter, 0, 40, 1));
  EXPECT_FALSE(Accepts(scatter, 0, 0, 1) || Accepts(scatter, 0, 40, 0));
  EXPECT_TRUE(Accepts(scatter, 0, 80) && Accepts(scatter, 40, 0));
  EXPECT_FALSE(Accepts(scatter, 0, 76) || Accepts(scatter, 36, 0));
  EXPECT_FALSE(Accepts(Collective::Scatter(kCount, DType::kF32, 0), 0, 0));
}

TEST_F(CheckOperandsTest, SeveralPiecesAreApart) {
  const int64_t counts[] = {kCount, kCount};  // inputs: 64 + 40 bytes; outputs: 128 + 80 bytes
  const Collective gather = Collective::AllGather(counts, DType::kF32);
  EXPECT_TRUE(Accepts(gather, 208, 0) && Accepts(gather, 0, 104));
  EXPECT_FALSE(Accepts(gather, 0, 0) || Accepts(gather, 204, 0) || Accepts(gather, 0, 100));
}

TEST_F(CheckOperandsTest, AnInputThatIsNotReadMayBeAnything) {
  const Collective broadcast = Collective::Broadcast(kCount, DType::kF32, /*root=*/1);
  EXPECT_TRUE(Accepts(broadcast, 4, 0, 0));
  EXPECT_FALSE(Accepts(broadcast, 4, 0, 1));
  EXPECT_TRUE(CheckOperands(broadcast, nullptr, memory_, {.label = "x"}, 0, 2).ok());
  EXPECT_FALSE(CheckOperands(broadcast, nullptr, memory_, {.label = "x"}, 1, 2).ok());
  EXPECT_FALSE(CheckOperands(broadcast, memory_, nullptr, {.label = "x"}, 1, 2).ok());
  EXPECT_FALSE(CheckOperands(broadcast, nullptr, nullptr, {.label = "x"}, 0, 2).ok());
  EXPECT_TRUE(CheckOperands(broadcast, nullptr, nullptr, {.label = "x", .compared_only = true}, 1, 2).ok());
  EXPECT_TRUE(CheckOperands(Collective::Broadcast(0, DType::kF32, 1), nullptr, nullptr, {.label = "x"}, 1, 2).ok());
}

TEST_F(CheckOperandsTest, TheRootIsARank) {
  for (const int root : {0, 1}) EXPECT_TRUE(Accepts(Collective::Broadcast(kCount, DType::kF32, root), 0, 40)) << root;
  for (const int root : {-1, 2}) EXPECT_FALSE(Accepts(Collective::Broadcast(kCount, DType::kF32, root), 0, 40)) << root;
}

}  // namespace
}  // namespace lockstep
