// How collectives fall into pieces, and what they are called.

#include "runtime/comm/chunks.h"

#include <string>
#include <vector>

#include "core/dtype.h"
#include "gtest/gtest.h"
#include "runtime/comm/describe.h"

namespace lockstep {
namespace {

OpDescription Description(Opcode opcode, int64_t count, DType dtype = DType::kF32) {
  return {.opcode = opcode,
          .kind = static_cast<uint8_t>(ReduceKind::kMax),
          .dtype = static_cast<uint8_t>(dtype),
          .root = 2,
          .count = count};
}

TEST(Chunks, EachElementIsInOne) {
  for (Opcode opcode : {Opcode::kAllReduce, Opcode::kBroadcast, Opcode::kAllGather, Opcode::kReduceScatter}) {
    const bool shares = opcode == Opcode::kAllGather || opcode == Opcode::kReduceScatter;
    for (DType dtype : {DType::kU8, DType::kF32, DType::kF64}) {
      for (int64_t count : {1, 63, 4096, 5000, 300001}) {
        for (int workers : {1, 3}) {
          const Chunks chunks(Description(opcode, count, dtype), 3, workers, 128 * 1024);
          std::vector<int64_t> next(3, 0);  // of each share: the first element that no chunk has yet
          for (uint32_t i = 0; i < chunks.size(); ++i) {
            const Chunk chunk = chunks.at(i);
            ASSERT_TRUE(chunk.share >= 0 && chunk.share < (shares ? 3 : 1)) << i;
            ASSERT_EQ(chunk.begin, next[chunk.share]) << i;
            ASSERT_GE(chunk.count, 1) << i;
            ASSERT_LE(chunk.count, chunks.max_count()) << i;
            next[chunk.share] += chunk.count;
          }
          EXPECT_EQ(next, (shares ? std::vector<int64_t>(3, count) : std::vector<int64_t>{count, 0, 0}));
        }
      }
    }
  }
}

TEST(Chunks, HaveAtMostSoManyBytesAndBeginAtCacheLines) {
  const Chunks chunks(Description(Opcode::kAllReduce, 10'000'000), 4, 4, 100'000);
  EXPECT_EQ(chunks.max_count(), 100'000 / 64 * 64 / 4);
  // 4 chunks for each worker, where they are not too small for that.
  EXPECT_EQ(Chunks(Description(Opcode::kAllReduce, 1 << 20), 4, 4, 1 << 30).size(), 16u);
  EXPECT_EQ(Chunks(Description(Opcode::kReduceScatter, 1 << 18), 4, 4, 1 << 30).size(), 16u);
  EXPECT_EQ(Chunks(Description(Opcode::kAllReduce, 4096), 4, 4, 1 << 30).max_count(), 1024);
}

TEST(Chunks, ThereAreNoneWhereNothingMoves) {
  EXPECT_EQ(Chunks(Description(Opcode::kBarrier, 100), 3, 3, 1000).size(), 0u);
  EXPECT_EQ(Chunks(Description(Opcode::kAllocate, 100), 3, 3, 1000).size(), 0u);
  EXPECT_EQ(Chunks(Description(Opcode::kAllReduce, 0), 3, 3, 1000).size(), 0u);
}

TEST(Chunks, OperandsHaveAShareOfEachRankWhereTheOpSaysSo) {
  EXPECT_EQ(InputBytes(Description(Opcode::kAllReduce, 10), 3), 40u);
  EXPECT_EQ(OutputBytes(Description(Opcode::kAllReduce, 10), 3), 40u);
  EXPECT_EQ(InputBytes(Description(Opcode::kAllGather, 10), 3), 40u);
  EXPECT_EQ(OutputBytes(Description(Opcode::kAllGather, 10), 3), 120u);
  EXPECT_EQ(InputBytes(Description(Opcode::kReduceScatter, 10), 3), 120u);
  EXPECT_EQ(OutputBytes(Description(Opcode::kReduceScatter, 10), 3), 40u);
}

TEST(Chunks, AddressesAreOfTheRanksThatHaveThem) {
  std::byte memory[8000];
  // Ranks 1 and 2 of a world of 4.
  Operands operands;
  operands.description = Description(Opcode::kReduceScatter, 100);
  operands.world_size = 4;
  operands.first_rank = 1;
  operands.inputs = {memory, memory + 1600};
  operands.outputs = {memory + 3200, memory + 3600};
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  const Chunk chunk{.share = 2, .begin = 10, .count = 5};
  ChunkInputs(operands, chunk, &inputs);
  EXPECT_EQ(inputs, (std::vector<const std::byte*>{memory + 840, memory + 2440}));
  ChunkOutputs(operands, chunk, &outputs);
  EXPECT_EQ(outputs, (std::vector<std::byte*>{memory + 3640}));
  for (int share : {0, 3}) {
    ChunkOutputs(operands, {.share = share, .begin = 10, .count = 5}, &outputs);
    EXPECT_TRUE(outputs.empty()) << share;
  }
  operands.description.opcode = Opcode::kAllGather;
  ChunkOutputs(operands, {.share = 2, .begin = 10, .count = 5}, &outputs);
  EXPECT_EQ(outputs, (std::vector<std::byte*>{memory + 4040, memory + 4440}));
  EXPECT_EQ(SourceRank(operands.description, chunk), 2);
  EXPECT_EQ(SourceAddress(operands, chunk), memory + 1640);
  operands.description.opcode = Opcode::kBroadcast;
  EXPECT_EQ(SourceRank(operands.description, {.share = 0, .begin = 10, .count = 5}), 2);
}

TEST(Describe, SaysWhatEachCollectiveIs) {
  EXPECT_EQ(Describe(Description(Opcode::kBarrier, 5), "x"), "barrier `x`");
  EXPECT_EQ(Describe(Description(Opcode::kAllocate, 5), "x"), "allocate `x`");
  EXPECT_EQ(Describe(Description(Opcode::kAllReduce, 5), "x"), "all_reduce max f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kBroadcast, 5), "x"), "broadcast from rank 2 f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kAllGather, 5), "x"), "all_gather f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kReduceScatter, 5), "x"), "reduce_scatter max f32[5] `x`");
}

TEST(DifferenceOf, IsTheFirstField) {
  const Communicator::Evidence a{
      .program = 1, .assignments = 2, .inputs = 3, .states = 4, .settings = 5, .assigned = {"w"}, .set = {"a=1.0"}};
  EXPECT_EQ(DifferenceOf(0, a, 1, a), "");
  Communicator::Evidence b = a;
  b.states = 5;
  EXPECT_EQ(DifferenceOf(0, a, 1, b), "replicas of the states differ (0x0000000000000004 and 0x0000000000000005)");
  b.inputs = 5;
  EXPECT_EQ(DifferenceOf(0, a, 1, b),
            "inputs that are replicated have different contents (0x0000000000000003 and 0x0000000000000005)");
  b.settings = 6;
  b.set = {};
  EXPECT_EQ(DifferenceOf(0, a, 1, b), "settings have different values on them (set on rank 0: a=1.0; on rank 1: none)");
  b.assignments = 5;
  b.assigned = {"unused"};
  EXPECT_EQ(DifferenceOf(0, a, 1, b), "different states were assigned on them (rank 0: w; rank 1: unused)");
  b.program = 5;
  EXPECT_EQ(DifferenceOf(0, a, 1, b), "they run different programs (0x0000000000000001 and 0x0000000000000005)");
  b.program = 0;
  EXPECT_EQ(DifferenceOf(0, a, 1, b),
            "rank 1 calls no program there: all ranks make the same calls, in the same order");
}

}  // namespace
}  // namespace lockstep
