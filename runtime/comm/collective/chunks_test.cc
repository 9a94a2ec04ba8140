// How collectives fall into pieces, and what they are called.

#include "runtime/comm/collective/chunks.h"

#include <string>
#include <vector>

#include "core/dtype.h"
#include "gtest/gtest.h"
#include "runtime/comm/collective/description.h"

namespace lockstep {
namespace {

OpDescription Description(Opcode opcode, int64_t count, DType dtype = DType::kF32) {
  return {.opcode = opcode,
          .kind = static_cast<uint8_t>(ReduceKind::kMax),
          .dtype = static_cast<uint8_t>(dtype),
          .root = 2,
          .count = count};
}

CollectiveCall Call(Opcode opcode, int64_t count, DType dtype = DType::kF32) {
  return {.description = Description(opcode, count, dtype), .counts = {count}, .pairs = {}};
}

constexpr Opcode kMoving[] = {Opcode::kAllReduce, Opcode::kBroadcast, Opcode::kAllGather, Opcode::kReduceScatter,
                              Opcode::kAllToAll,  Opcode::kPermute,   Opcode::kGather,    Opcode::kScatter};

TEST(Chunks, EachElementIsInOne) {
  for (Opcode opcode : kMoving) {
    const bool is_whole = opcode == Opcode::kAllReduce || opcode == Opcode::kBroadcast;
    const size_t shares = is_whole ? 1 : opcode == Opcode::kAllToAll ? 9 : 3;
    for (DType dtype : {DType::kU8, DType::kF32, DType::kF64}) {
      for (int64_t count : {1, 63, 4096, 5000, 300001}) {
        for (int workers : {1, 3}) {
          const Chunks chunks(Call(opcode, count, dtype), 3, workers, 128 * 1024);
          std::vector<int64_t> next(shares, 0);  // of each share: the first element that no chunk has yet
          for (uint32_t i = 0; i < chunks.size(); ++i) {
            const Chunk chunk = chunks.at(i);
            ASSERT_EQ(chunk.piece, 0);
            ASSERT_TRUE(chunk.share >= 0 && chunk.share < static_cast<int>(shares)) << i;
            ASSERT_EQ(chunk.begin, next[chunk.share]) << i;
            ASSERT_GE(chunk.count, 1) << i;
            ASSERT_LE(chunk.count, chunks.max_count()) << i;
            next[chunk.share] += chunk.count;
          }
          EXPECT_EQ(next, std::vector<int64_t>(shares, count));
        }
      }
    }
  }
}

TEST(Chunks, PiecesAreCutOneAfterTheOther) {
  CollectiveCall call = Call(Opcode::kReduceScatter, 70003);
  call.counts = {3, 0, 50000, 20000};
  const Chunks chunks(call, 2, 2, 64 * 1024);
  std::vector<std::vector<int64_t>> next(4, {0, 0});  // by piece and share
  int piece = 0;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    const Chunk chunk = chunks.at(i);
    ASSERT_GE(chunk.piece, piece) << i;
    piece = chunk.piece;
    int64_t& begin = next[static_cast<size_t>(chunk.piece)][static_cast<size_t>(chunk.share)];
    ASSERT_EQ(chunk.begin, begin) << i;
    ASSERT_LE(chunk.count, chunks.max_count());
    begin += chunk.count;
  }
  EXPECT_EQ(next, (std::vector<std::vector<int64_t>>{{3, 3}, {0, 0}, {50000, 50000}, {20000, 20000}}));
}

TEST(Chunks, HaveAtMostSoManyBytesAndBeginAtCacheLines) {
  const Chunks chunks(Call(Opcode::kAllReduce, 10'000'000), 4, 4, 100'000);
  EXPECT_EQ(chunks.max_count(), 100'000 / 64 * 64 / 4);
  // 4 chunks for each worker, where they are not too small for that.
  EXPECT_EQ(Chunks(Call(Opcode::kAllReduce, 1 << 20), 4, 4, 1 << 30).size(), 16u);
  EXPECT_EQ(Chunks(Call(Opcode::kReduceScatter, 1 << 18), 4, 4, 1 << 30).size(), 16u);
  EXPECT_EQ(Chunks(Call(Opcode::kAllReduce, 4096), 4, 4, 1 << 30).max_count(), 1024);
}

TEST(Chunks, ThereAreNoneWhereNothingMoves) {
  EXPECT_EQ(Chunks(Call(Opcode::kBarrier, 100), 3, 3, 1000).size(), 0u);
  EXPECT_EQ(Chunks(Call(Opcode::kAllocate, 100), 3, 3, 1000).size(), 0u);
  EXPECT_EQ(Chunks(Call(Opcode::kAllReduce, 0), 3, 3, 1000).size(), 0u);
}

TEST(Chunks, OperandsHaveAShareOfEachRankWhereTheOpSaysSo) {
  for (Opcode opcode : kMoving) {
    const bool scatters = opcode == Opcode::kReduceScatter || opcode == Opcode::kAllToAll || opcode == Opcode::kScatter;
    const bool gathers = opcode == Opcode::kAllGather || opcode == Opcode::kAllToAll || opcode == Opcode::kGather;
    EXPECT_EQ(InputBytes(Call(opcode, 10), 3), scatters ? 120u : 40u) << static_cast<int>(opcode);
    EXPECT_EQ(OutputBytes(Call(opcode, 10), 3), gathers ? 120u : 40u) << static_cast<int>(opcode);
  }
}

TEST(Chunks, PiecesBeginAtMultiplesOfTheirAlignment) {
  CollectiveCall call = Call(Opcode::kAllGather, 20);
  call.counts = {3, 1, 16};
  const std::vector<Piece> pieces = PiecesOf(call, 2);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1].input_begin, 64u);
  EXPECT_EQ(pieces[2].input_begin, 128u);
  EXPECT_EQ(pieces[2].output_begin, 128u);
  EXPECT_EQ(InputBytes(call, 2), 192u);
  EXPECT_EQ(OutputBytes(call, 2), 256u);
}

TEST(Chunks, AddressesAreOfTheRanksThatHaveThem) {
  std::byte memory[8000];
  // Ranks 1 and 2 of a world of 4.
  const auto operands_of = [&](const CollectiveCall& call) {
    Operands operands = Operands::Of(call, 4, 1);
    operands.inputs = {memory, memory + 1600};
    operands.outputs = {memory + 3200, memory + 4800};
    return operands;
  };
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  const Chunk chunk{.share = 2, .begin = 10, .count = 5};
  Operands operands = operands_of(Call(Opcode::kReduceScatter, 100));
  ChunkInputs(operands, chunk, &inputs);
  EXPECT_EQ(inputs, (std::vector<const std::byte*>{memory + 840, memory + 2440}));
  ChunkOutputs(operands, chunk, &outputs);
  EXPECT_EQ(outputs, (std::vector<std::byte*>{memory + 4840}));
  for (int share : {0, 3}) {
    ChunkOutputs(operands, {.share = share, .begin = 10, .count = 5}, &outputs);
    EXPECT_TRUE(outputs.empty()) << share;
  }
  operands = operands_of(Call(Opcode::kAllGather, 100));
  ChunkOutputs(operands, chunk, &outputs);
  EXPECT_EQ(outputs, (std::vector<std::byte*>{memory + 4040, memory + 5640}));
  EXPECT_EQ(SourceRank(operands, chunk), 2);
  EXPECT_EQ(SourceAddress(operands, chunk), memory + 1640);
  EXPECT_EQ(SourceRank(operands_of(Call(Opcode::kBroadcast, 100)), {.share = 0, .begin = 10, .count = 5}), 2);
}

TEST(Chunks, GoFromOneRankToAnother) {
  std::byte memory[8000];
  const auto operands_of = [&](const CollectiveCall& call) {
    Operands operands = Operands::Of(call, 2, 0);
    operands.inputs = {memory, memory + 1600};
    operands.outputs = {memory + 3200, memory + 4800};
    return operands;
  };
  std::vector<std::byte*> outputs;
  // Each pair of ranks once, and in turn another source.
  Operands operands = operands_of(Call(Opcode::kAllToAll, 100));
  const int pairs[4][2] = {{0, 0}, {1, 1}, {0, 1}, {1, 0}};
  for (int share = 0; share < 4; ++share) {
    const Chunk chunk{.share = share, .begin = 10, .count = 5};
    const int source = pairs[share][0], target = pairs[share][1];
    EXPECT_EQ(SourceRank(operands, chunk), source) << share;
    EXPECT_EQ(TargetRank(operands, chunk), target) << share;
    EXPECT_EQ(SourceAddress(operands, chunk), memory + 1600 * source + 400 * target + 40) << share;
    ChunkOutputs(operands, chunk, &outputs);
    EXPECT_EQ(outputs, (std::vector<std::byte*>{memory + 3200 + 1600 * target + 400 * source + 40})) << share;
  }
  CollectiveCall permute = Call(Opcode::kPermute, 100);
  permute.pairs = {{.source = 1, .target = 0}};
  operands = operands_of(permute);
  EXPECT_EQ(SourceRank(operands, {.share = 0, .begin = 0, .count = 100}), 1);
  EXPECT_EQ(SourceRank(operands, {.share = 1, .begin = 0, .count = 100}), -1);
  EXPECT_FALSE(GetsNothing(permute, 0));
  EXPECT_TRUE(GetsNothing(permute, 1));
}

TEST(Describe, SaysWhatEachCollectiveIs) {
  EXPECT_EQ(Describe(Description(Opcode::kBarrier, 5), "x"), "barrier `x`");
  EXPECT_EQ(Describe(Description(Opcode::kAllocate, 5), "x"), "allocate `x`");
  EXPECT_EQ(Describe(Description(Opcode::kAllReduce, 5), "x"), "all_reduce max f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kBroadcast, 5), "x"), "broadcast from rank 2 f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kAllGather, 5), "x"), "all_gather f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kReduceScatter, 5), "x"), "reduce_scatter max f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kAllToAll, 5), "x"), "all_to_all f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kGather, 5), "x"), "gather to rank 2 f32[5] `x`");
  EXPECT_EQ(Describe(Description(Opcode::kScatter, 5), "x"), "scatter from rank 2 f32[5] `x`");
  OpDescription permute = Description(Opcode::kPermute, 5), bucket = Description(Opcode::kAllGather, 5);
  permute.lists = 0x12, bucket.lists = 0x34, bucket.pieces = 3;
  EXPECT_EQ(Describe(permute, "x"), "permute f32[5] (pairs 0x0000000000000012) `x`");
  EXPECT_EQ(Describe(bucket, "x"), "all_gather f32[5] in 3 pieces (counts 0x0000000000000034) `x`");
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
