#include "backends/loops/grid_plan.h"

#include <algorithm>

#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

GridPlan PlanOf(const std::string& text, const GridSizes& sizes = {}) {
  absl::StatusOr<GridPlan> plan = PlanGrid(ParseGraph(text).value(), sizes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

GridPlan Negated(const std::string& type) {
  return PlanOf("graph @f(%x: " + type + ") -> (y: " + type + ") {\n %y = neg %x : " + type + "\n return %y\n}");
}

GridPlan Summed(const std::string& from, const std::string& dims, const std::string& to) {
  return PlanOf("graph @f(%x: " + from + ") -> (y: " + to + ") {\n %e = neg %x : " + from +
                "\n %y = reduce_sum %e {dims=[" + dims + "]} : " + to + "\n return %y\n}");
}

// Every point is covered once: blocks x groups cover the kept vectors, and chunks the reduced ones.
void ExpectCovers(const GridPlan& plan) {
  EXPECT_GE(plan.kept_blocks() * plan.groups(), plan.kept_vectors());
  EXPECT_LT((plan.kept_blocks() - 1) * plan.groups(), plan.kept_vectors());
  EXPECT_GE(plan.num_chunks * plan.chunk_length, plan.reduced_vectors());
  EXPECT_LT((plan.num_chunks - 1) * plan.chunk_length, plan.reduced_vectors());
  EXPECT_EQ(plan.kept_vectors() * plan.reduced_vectors() * plan.lanes, plan.num_points());
  EXPECT_EQ(plan.groups() * plan.splits, plan.threads);
}

TEST(PlanGrid, AnElementwiseLoopReadsSixteenBytesAThread) {
  EXPECT_EQ(Negated("f32[4194304]").lanes, 4);
  EXPECT_EQ(Negated("f16[4194304]").lanes, 8);
  EXPECT_EQ(Negated("f64[4194304]").lanes, 2);
  const GridPlan plan = Negated("f32[4194304]");
  EXPECT_EQ(plan.kept_blocks(), 4194304 / 4 / 256);
  ExpectCovers(plan);
}

TEST(PlanGrid, VectorsAreWholeAndSmallLoopsAreSharedByMoreThreads) {
  EXPECT_EQ(Negated("f32[4194306]").lanes, 2);
  EXPECT_EQ(Negated("f32[4194305]").lanes, 1);
  EXPECT_EQ(Negated("f32[4096]").lanes, 1);
  EXPECT_EQ(Negated("f32[0]").kept_blocks(), 0);
}

TEST(PlanGrid, ManyRowsGetAWarpEachAndFewABlock) {
  const GridPlan many = Summed("f32[16384,1024]", "1", "f32[16384]");
  EXPECT_EQ(many.splits, 32);
  EXPECT_EQ(many.num_chunks, 1);
  ExpectCovers(many);
  const GridPlan few = Summed("f32[600,65536]", "1", "f32[600]");
  EXPECT_EQ(few.splits, 256);
  EXPECT_EQ(few.num_chunks, 1);
  ExpectCovers(few);
  // The sums are so short that sharing them is slower.
  EXPECT_EQ(Summed("f32[65536,8]", "1", "f32[65536]").splits, 1);
}

TEST(PlanGrid, SumsOfColumnsReadNeighboursAndAreCutIntoChunks) {
  const GridPlan plan = Summed("f32[65536,512]", "0", "f32[512]");
  EXPECT_EQ(plan.groups(), 32);
  EXPECT_EQ(plan.splits, 8);
  EXPECT_EQ(plan.kept_blocks(), 4);
  EXPECT_EQ(plan.num_chunks, 256);
  EXPECT_EQ(plan.scratch_bytes(), 256 * 512 * 8);
  EXPECT_EQ(plan.finish_blocks(), 512);
  ExpectCovers(plan);
}

// A chunk writes its part of a reduction as aligned vectors, also for the second reduction.
TEST(PlanGrid, PartsOfEachReductionAreAligned) {
  int padded = 0;
  for (int rows = 40000; rows < 60000; rows += 1001) {
    const GridPlan plan = Summed("f32[" + std::to_string(rows) + ",3]", "0", "f32[3]");
    ASSERT_GT(plan.num_chunks, 1);
    const int64_t bytes = plan.num_chunks * plan.num_kept() * 8;
    EXPECT_EQ(plan.scratch_stride() % 64, 0) << rows;
    EXPECT_GE(plan.scratch_stride(), bytes);
    padded += bytes % 64 != 0;
  }
  EXPECT_GT(padded, 0);
}

TEST(PlanGrid, ASumOfAllIsCutIntoChunks) {
  const GridPlan plan = Summed("f32[25000000]", "0", "f32[]");
  EXPECT_EQ(plan.splits, 256);
  EXPECT_EQ(plan.num_chunks, 1024);
  ExpectCovers(plan);
}

// A warp, or a block if there are more chunks than two for each thread of a warp.
TEST(PlanGrid, TheChunksOfASumAreCombinedByAsManyThreadsAsTheyNeed) {
  const GridPlan few = Summed("f32[65536,8192]", "0", "f32[8192]"), many = Summed("f32[65536,512]", "0", "f32[512]");
  EXPECT_EQ(few.num_chunks, 16);
  EXPECT_EQ(few.finish_splits(), 32);
  EXPECT_EQ(few.finish_blocks(), 8192 * 32 / 256);
  EXPECT_EQ(many.finish_splits(), 256);
}

TEST(PlanGrid, ShortRowsOfSeveralPhasesAreKept) {
  const auto keeps = [](const std::string& shape) {
    return PlanOf("graph @f(%x: f32[" + shape + "]) -> (y: f32[" + shape +
                  "]) {\n%s = reduce_sum %x {dims=[1]} : f32[" + shape.substr(0, shape.find(',')) +
                  "]\n%b = broadcast %s {dims=[0], shape=[" + shape + "]} : f32[" + shape +
                  "]\n%y = div %x, %b : f32[" + shape + "]\nreturn %y\n}")
        .keeps_rows();
  };
  EXPECT_TRUE(keeps("65536,1024"));
  EXPECT_TRUE(keeps("65536,768"));
  EXPECT_FALSE(keeps("65536,2048"));                                        // too long for the registers of a warp
  EXPECT_FALSE(keeps("65536,776"));                                         // no multiple of a warp's vectors
  EXPECT_FALSE(Summed("f32[16384,1024]", "1", "f32[16384]").keeps_rows());  // reads its row once anyway
}

// A loop that needs the sum before it continues reads its rows twice, in one kernel.
TEST(PlanGrid, PhasesAreNotCutIntoChunks) {
  const GridPlan plan = PlanOf(R"(graph @f(%x: f32[4,100000]) -> (y: f32[4,100000]) {
    %s = reduce_sum %x {dims=[1]} : f32[4]
    %b = broadcast %s {dims=[0], shape=[4,100000]} : f32[4,100000]
    %y = div %x, %b : f32[4,100000]
    return %y
  })");
  EXPECT_EQ(plan.num_phases, 2);
  EXPECT_EQ(plan.num_chunks, 1);
  EXPECT_EQ(plan.splits, 256);
  ExpectCovers(plan);
}

// The sum of a row may overwrite the row's label, unless threads that share the row still read it.
TEST(PlanGrid, AReducedResultMayNotOverwriteWhatOthersStillRead) {
  const auto text = [](const std::string& rows) {
    return "graph @f(%x: f32[" + rows + "], %l: f32[64]) -> (y: f32[" + rows + "], s: f32[64]) {\n" +
           " %s = reduce_sum %x {dims=[1]} : f32[64]\n %b = broadcast %l {dims=[0], shape=[" + rows + "]} : f32[" +
           rows + "]\n %c = broadcast %s {dims=[0], shape=[" + rows + "]} : f32[" + rows +
           "]\n %d = sub %b, %c : f32[" + rows + "]\n %y = add %x, %d : f32[" + rows + "]\n return %y, %s\n}";
  };
  EXPECT_EQ(PlanOf(text("64,1000")).in_place, (std::vector<std::vector<int>>{{0}, {}}));
  EXPECT_EQ(PlanOf(text("64,100")).splits, GridPlan::kWarp) << "threads of a warp are no less apart";
  EXPECT_EQ(PlanOf(text("64,100")).in_place, (std::vector<std::vector<int>>{{0}, {}}));
  EXPECT_EQ(PlanOf(text("64,2")).splits, 1);
  EXPECT_EQ(PlanOf(text("64,2")).in_place, (std::vector<std::vector<int>>{{0}, {1}}));
}

// The most lanes and the widest accumulators: sums of columns of one byte.
TEST(PlanGrid, TheMemoryOfABlockSufficesForAllPlansOfTheDefaultSizes) {
  EXPECT_EQ(Summed("f32[600,65536]", "1", "f32[600]").shared_bytes(), 256 / 32 * 8);
  int64_t most = 0;
  for (const char* dtype : {"i8", "u8", "f16", "bf16", "i32", "f32", "i64", "f64"}) {
    for (const char* rows : {"64", "1000", "65536", "4000000"}) {
      for (const char* columns : {"1", "16", "512", "65536"}) {
        const std::string to = dtype + std::string("[") + columns + "]";
        const GridPlan plan =
            PlanOf("graph @f(%x: " + std::string(dtype) + "[" + rows + "," + columns + "]) -> (y: " + to +
                   ") {\n %y = reduce_max %x {dims=[0]} : " + to + "\n return %y\n}");
        most = std::max(most, plan.shared_bytes());
      }
    }
  }
  EXPECT_GE(most, 16 << 10);
  EXPECT_LE(most, GridPlan::kMostShared);
}

TEST(PlanGrid, SizesCutIt) {
  const std::string text = R"(graph @f(%x: f32[1000,300]) -> (y: f32[300]) {
    %e = neg %x : f32[1000,300]
    %y = reduce_sum %e {dims=[0]} : f32[300]
    return %y
  })";
  const GridPlan plan = PlanOf(text, {.threads = 64, .vector_bytes = 8, .blocks = 30, .vectors = 10});
  EXPECT_EQ(plan.threads, 64);
  EXPECT_EQ(plan.lanes, 2);
  EXPECT_EQ(plan.splits, 2);
  EXPECT_EQ(plan.num_chunks, 6);
  ExpectCovers(plan);
}

}  // namespace
}  // namespace lockstep
