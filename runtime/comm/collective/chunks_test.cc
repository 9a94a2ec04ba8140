// Tests the chunks of collectives and the descriptions in messages.

#include "runtime/comm/collective/chunks.h"

#include <string>
#include <vector>

#include "core/dtype.h"
#include "gtest/gtest.h"
#include "runtime/comm/collective/description.h"

namespace lockstep {
namespace {

Collective Call(CollectiveOp op, int64_t count, DType dtype = DType::kF32) {
  return {.op = op, .dtype = dtype, .kind = ReduceKind::kMax, .root = 2, .counts = {count}};
}

OpDescription Description(CollectiveOp op, int64_t count) { return DescriptionOf(Call(op, count), {}); }

std::vector<CollectiveOp> MovingOps() {
  return CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.moves_data; });
}

TEST(Chunks, EachElementIsInOne) {
  for (const CollectiveOp op : MovingOps()) {
    SCOPED_TRACE(CollectiveOpName(op));
    const CollectiveTraits traits = TraitsOf(op);
    const size_t shares = (traits.gathers && traits.scatters) ? 9 : traits.counts_slices() || traits.permutes ? 3 : 1;
    for (DType dtype : {DType::kU8, DType::kF32, DType::kF64}) {
      for (int64_t count : {1, 63, 4096, 5000, 300001}) {
        for (int workers : {1, 3}) {
          const Chunks chunks(Call(op, count, dtype), 3, workers, 128 * 1024);
          std::vector<int64_t> next(shares, 0);  // for each share: the first element that is in no chunk so far
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
  Collective call = Call(CollectiveOp::kReduceScatter, 70003);
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
  const Chunks chunks(Call(CollectiveOp::kAllReduce, 10'000'000), 4, 4, 100'000);
  EXPECT_EQ(chunks.max_count(), 100'000 / 64 * 64 / 4);
  // 4 chunks for each worker, unless they become too small.
  EXPECT_EQ(Chunks(Call(CollectiveOp::kAllReduce, 1 << 20), 4, 4, 1 << 30).size(), 16u);
  EXPECT_EQ(Chunks(Call(CollectiveOp::kReduceScatter, 1 << 18), 4, 4, 1 << 30).size(), 16u);
  EXPECT_EQ(Chunks(Call(CollectiveOp::kAllReduce, 4096), 4, 4, 1 << 30).max_count(), 1024);
}

TEST(Chunks, ThereAreNoneWhereNothingMoves) {
  EXPECT_EQ(Chunks(Call(CollectiveOp::kBarrier, 100), 3, 3, 1000).size(), 0u);
  EXPECT_EQ(Chunks(Call(CollectiveOp::kAllocate, 100), 3, 3, 1000).size(), 0u);
  EXPECT_EQ(Chunks(Call(CollectiveOp::kAllReduce, 0), 3, 3, 1000).size(), 0u);
}

TEST(Chunks, OperandsHaveAShareOfEachRankWhereTheOpSaysSo) {
  for (const CollectiveOp op : MovingOps()) {
    EXPECT_EQ(InputBytes(Call(op, 10), 3), TraitsOf(op).scatters ? 120u : 40u) << CollectiveOpName(op);
    EXPECT_EQ(OutputBytes(Call(op, 10), 3), TraitsOf(op).gathers ? 120u : 40u) << CollectiveOpName(op);
  }
}

TEST(Chunks, PiecesBeginAtMultiplesOfTheirAlignment) {
  Collective call = Call(CollectiveOp::kAllGather, 20);
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
  // The operands of ranks 1 and 2 in a world of 4.
  const auto operands_of = [&](const Collective& call) {
    Operands operands = Operands::Of(call, 4, 1);
    operands.inputs = {memory, memory + 1600};
    operands.outputs = {memory + 3200, memory + 4800};
    return operands;
  };
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  const Chunk chunk{.share = 2, .begin = 10, .count = 5};
  const Collective reduce_scatter = Call(CollectiveOp::kReduceScatter, 100);
  Operands operands = operands_of(reduce_scatter);
  ChunkInputs(operands, chunk, &inputs);
  EXPECT_EQ(inputs, (std::vector<const std::byte*>{memory + 840, memory + 2440}));
  ChunkOutputs(operands, chunk, &outputs);
  EXPECT_EQ(outputs, (std::vector<std::byte*>{memory + 4840}));
  for (int share : {0, 3}) {
    ChunkOutputs(operands, {.share = share, .begin = 10, .count = 5}, &outputs);
    EXPECT_TRUE(outputs.empty()) << share;
  }
  const Collective all_gather = Call(CollectiveOp::kAllGather, 100);
  operands = operands_of(all_gather);
  ChunkOutputs(operands, chunk, &outputs);
  EXPECT_EQ(outputs, (std::vector<std::byte*>{memory + 4040, memory + 5640}));
  EXPECT_EQ(SourceRank(operands, chunk), 2);
  EXPECT_EQ(SourceAddress(operands, chunk), memory + 1640);
  const Collective broadcast = Call(CollectiveOp::kBroadcast, 100);
  EXPECT_EQ(SourceRank(operands_of(broadcast), {.share = 0, .begin = 10, .count = 5}), 2);
}

TEST(Chunks, GoFromOneRankToAnother) {
  std::byte memory[8000];
  const auto operands_of = [&](const Collective& call) {
    Operands operands = Operands::Of(call, 2, 0);
    operands.inputs = {memory, memory + 1600};
    operands.outputs = {memory + 3200, memory + 4800};
    return operands;
  };
  std::vector<std::byte*> outputs;
  // Each pair of ranks occurs once, and the sources alternate.
  const Collective all_to_all = Call(CollectiveOp::kAllToAll, 100);
  Operands operands = operands_of(all_to_all);
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
  Collective permute = Call(CollectiveOp::kPermute, 100);
  permute.pairs = {{.source = 1, .target = 0}};
  operands = operands_of(permute);
  EXPECT_EQ(SourceRank(operands, {.share = 0, .begin = 0, .count = 100}), 1);
  EXPECT_EQ(SourceRank(operands, {.share = 1, .begin = 0, .count = 100}), -1);
  EXPECT_FALSE(GetsNothing(permute, 0));
  EXPECT_TRUE(GetsNothing(permute, 1));
}

TEST(DescriptionOf, SaysWhatListsHold) {
  const auto of = [](const Collective& collective) { return DescriptionOf(collective, {}); };
  EXPECT_EQ(of(Collective::AllGather(5, DType::kF32)).lists, 0u);
  const int64_t counts[] = {2, 3}, others[] = {3, 2};
  EXPECT_EQ(of(Collective::AllGather(counts, DType::kF32)).count, 5);
  EXPECT_EQ(of(Collective::AllGather(counts, DType::kF32)).pieces, 2);
  EXPECT_NE(of(Collective::AllGather(counts, DType::kF32)), of(Collective::AllGather(others, DType::kF32)));
  const RankPair there[] = {{.source = 0, .target = 1}}, back[] = {{.source = 1, .target = 0}};
  EXPECT_NE(of(Collective::Permute(5, DType::kF32, there)), of(Collective::Permute(5, DType::kF32, back)));
}

TEST(DescriptionOf, DiffersWithEachFieldOfACall) {
  const Collective call = Call(CollectiveOp::kReduceScatter, 10);
  std::vector<OpDescription> all = {DescriptionOf(call, {})};
  const auto add = [&](void (*change)(Collective&, Communicator::Call&)) {
    Collective changed = call;
    Communicator::Call of = {};
    change(changed, of);
    all.push_back(DescriptionOf(changed, of));
  };
  add([](Collective& c, Communicator::Call&) { c.op = CollectiveOp::kAllReduce; });
  add([](Collective& c, Communicator::Call&) { c.dtype = DType::kI32; });
  add([](Collective& c, Communicator::Call&) { c.kind = ReduceKind::kMin; });
  add([](Collective& c, Communicator::Call&) { c.root = 1; });
  add([](Collective& c, Communicator::Call&) { c.counts = {11}; });
  add([](Collective& c, Communicator::Call&) { c.counts = {4, 6}; });
  add([](Collective& c, Communicator::Call&) { c.counts = {4, 6, 0}; });
  add([](Collective&, Communicator::Call& of) { of.compared_only = true; });
  add([](Collective&, Communicator::Call& of) { of.is_transfer = true; });
  add([](Collective&, Communicator::Call& of) { of.evidence.program = 1; });
  add([](Collective&, Communicator::Call& of) { of.evidence.assignments = 1; });
  add([](Collective&, Communicator::Call& of) { of.evidence.inputs = 1; });
  add([](Collective&, Communicator::Call& of) { of.evidence.states = 1; });
  add([](Collective&, Communicator::Call& of) { of.evidence.settings = 1; });
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " and " << j;
  }
  // Pairs that share a source or a target, and ranks of two bytes.
  const auto permute = [](const std::vector<RankPair>& pairs) {
    return DescriptionOf(Collective::Permute(5, DType::kF32, pairs), {}).lists;
  };
  EXPECT_NE(permute({{0, 1}}), permute({{0, 2}}));
  EXPECT_NE(permute({{0, 1}}), permute({{2, 1}}));
  EXPECT_NE(permute({{0, 1}}), permute({{0, 257}}));
}

TEST(Describe, SaysWhatEachCollectiveIs) {
  EXPECT_EQ(Describe(Description(CollectiveOp::kBarrier, 5), "x"), "barrier `x`");
  EXPECT_EQ(Describe(Description(CollectiveOp::kAllocate, 5), "x"), "allocate `x`");
  EXPECT_EQ(Describe(Description(CollectiveOp::kAllReduce, 5), "x"), "all_reduce max f32[5] `x`");
  EXPECT_EQ(Describe(Description(CollectiveOp::kBroadcast, 5), "x"), "broadcast from rank 2 f32[5] `x`");
  EXPECT_EQ(Describe(Description(CollectiveOp::kAllGather, 5), "x"), "all_gather f32[5] `x`");
  EXPECT_EQ(Describe(Description(CollectiveOp::kReduceScatter, 5), "x"), "reduce_scatter max f32[5] `x`");
  EXPECT_EQ(Describe(Description(CollectiveOp::kAllToAll, 5), "x"), "all_to_all f32[5] `x`");
  EXPECT_EQ(Describe(Description(CollectiveOp::kGather, 5), "x"), "gather to rank 2 f32[5] `x`");
  EXPECT_EQ(Describe(Description(CollectiveOp::kScatter, 5), "x"), "scatter from rank 2 f32[5] `x`");
  OpDescription transfer = Description(CollectiveOp::kBroadcast, 5);
  transfer.is_transfer = true;
  EXPECT_EQ(Describe(transfer, "%w from 0 to 1"), "transfer f32[5] `%w from 0 to 1`");
  OpDescription permute = Description(CollectiveOp::kPermute, 5), bucket = Description(CollectiveOp::kAllGather, 5);
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
