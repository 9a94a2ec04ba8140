#include "verify/shrink.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verify/compare_programs.h"
#include "verify/factors.h"

namespace lockstep::verify {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Graph Parsed(const std::string& text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return *std::move(graph);
}

// `text` is a program of which `small` is expected for `ranks`. Both have one line for each node.
void ExpectShrunk(const std::string& text, int64_t ranks, const std::string& small) {
  const Shrunk shrunk = ShrinkDimensions(Parsed(text), ranks);
  EXPECT_EQ(shrunk.program.ToString(), Parsed(small).ToString());
}

TEST(ShrinkDimensions, KeepsWhatRanksCanSplit) {
  const std::string step = R"(
graph @step(%x: f32[96,60] split(0), %dz: f32[96,30] split(0), state %w: f32[60,30]) -> (%w: f32[60,30]) {
  %dw = matmul %x, %dz {transpose_a=true} : f32[60,30]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[60,30]
  return %w1
}
)";
  ExpectShrunk(step, 4, R"(
graph @step(%x: f32[4,8] split(0), %dz: f32[4,2] split(0), state %w: f32[8,2]) -> (%w: f32[8,2]) {
  %dw = matmul %x, %dz {transpose_a=true} : f32[8,2]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[8,2]
  return %w1
}
)");
  EXPECT_THAT(ShrinkDimensions(Parsed(step), 4).changes,
              ElementsAre("30 -> 2 (dim 1 of dz, w)", "60 -> 8 (dim 0 of w; dim 1 of x)", "96 -> 4 (dim 0 of x, dz)"));
}

TEST(ShrinkDimensions, SplitsSizesIntoTheFactorsOfReshapes) {
  ExpectShrunk(R"(
graph @f(%x: f32[64,768]) -> (y: f32[12,64,64]) {
  %heads = reshape %x {shape=[64, 12, 64]} : f32[64,12,64]
  %y = transpose %heads {permutation=[1, 0, 2]} : f32[12,64,64]
  return %y
}
)",
               2, R"(
graph @f(%x: f32[4,8]) -> (y: f32[2,4,4]) {
  %heads = reshape %x {shape=[4, 2, 4]} : f32[4,2,4]
  %y = transpose %heads {permutation=[1, 0, 2]} : f32[2,4,4]
  return %y
}
)");
}

TEST(ShrinkDimensions, ThirdsStayThirds) {
  ExpectShrunk(R"(
graph @f(%x: f32[8,30]) -> (y: f32[8,30]) {
  %a = slice %x {start=[0, 10], limit=[8, 20], stride=[1, 1]} : f32[8,10]
  %y = pad %a {low=[0, 20], high=[0, 0], value=0.0} : f32[8,30]
  return %y
}
)",
               2, R"(
graph @f(%x: f32[2,12]) -> (y: f32[2,12]) {
  %a = slice %x {start=[0, 4], limit=[2, 8], stride=[1, 1]} : f32[2,4]
  %y = pad %a {low=[0, 8], high=[0, 0], value=0.0} : f32[2,12]
  return %y
}
)");
}

TEST(ShrinkDimensions, HeightsFollowFromThoseBeforeConvolutions) {
  ExpectShrunk(R"(
graph @f(%x: f32[64,3,32,32], %w: f32[6,3,5,5]) -> (y: f32[64,1176]) {
  %c = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1]} : f32[64,6,28,28]
  %p = max_pool %c {window=[2, 2], stride=[2, 2], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1]} : f32[64,6,14,14]
  %y = reshape %p {shape=[64, 1176]} : f32[64,1176]
  return %y
}
)",
               2, R"(
graph @f(%x: f32[6,3,8,8], %w: f32[2,3,5,5]) -> (y: f32[6,8]) {
  %c = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1]} : f32[6,2,4,4]
  %p = max_pool %c {window=[2, 2], stride=[2, 2], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1]} : f32[6,2,2,2]
  %y = reshape %p {shape=[6, 8]} : f32[6,8]
  return %y
}
)");
}

constexpr char kGrouped[] = R"(
graph @f(%x: f32[64,12,10,10], %w: f32[16,6,3,3]) -> (y: f32[64,16,8,8]) {
  %y = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1], groups=2} : f32[64,16,8,8]
  return %y
}
)";

TEST(ShrinkDimensions, ChannelsStayTwiceThoseOfOneOfTwoGroups) {
  ExpectShrunk(kGrouped, 2, R"(
graph @f(%x: f32[8,4,4,4], %w: f32[6,2,3,3]) -> (y: f32[8,6,2,2]) {
  %y = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1], groups=2} : f32[8,6,2,2]
  return %y
}
)");
}

// For one rank, the 16 filters would become 5, which are not two groups.
TEST(ShrinkDimensions, OnlySizesThatDoNotFitStay) {
  ExpectShrunk(kGrouped, 1, R"(
graph @f(%x: f32[5,4,4,4], %w: f32[16,2,3,3]) -> (y: f32[5,16,2,2]) {
  %y = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1], groups=2} : f32[5,16,2,2]
  return %y
}
)");
}

TEST(ShrinkDimensions, SumsOfPartsCanBeSplitAsBefore) {
  ExpectShrunk(R"(
graph @f(%x: f32[8,100], %y: f32[8,400]) -> (z: f32[8,500]) {
  %z = concat %x, %y {dim=1} : f32[8,500]
  return %z
}
)",
               3, R"(
graph @f(%x: f32[2,4], %y: f32[2,7]) -> (z: f32[2,11]) {
  %z = concat %x, %y {dim=1} : f32[2,11]
  return %z
}
)");
}

TEST(ShrinkDimensions, SizesThatAreWrittenInConstantsMayStay) {
  const Graph program = Parsed(R"(
graph @f(%x: f32[256,64], %i: i64[8]) -> (y: i64[8], z: f32[256,64]) {
  %c = constant {value=dense<i64[]: 256>} : i64[]
  %b = broadcast %c {dims=[], shape=[8]} : i64[8]
  %y = add %i, %b : i64[8]
  %z = exp %x : f32[256,64]
  return %y, %z
}
)");
  EXPECT_THAT(ShrinkDimensions(program, 2).changes,
              ElementsAre("8 -> 2 (dim 0 of i)", "64 -> 4 (dim 1 of x)", "256 -> 6 (dim 0 of x)"));
  EXPECT_THAT(ShrinkDimensions(program, 2, /*keeps_written=*/true).changes,
              ElementsAre("8 -> 2 (dim 0 of i)", "64 -> 4 (dim 1 of x)"));
}

TEST(ShrinkDimensions, NodesWithoutUseVanish) {
  ExpectShrunk(R"(
graph @f(%x: f32[64]) -> (y: f32[64]) {
  %unused = exp %x : f32[64]
  %y = neg %x : f32[64]
  return %y
}
)",
               2, R"(
graph @f(%x: f32[2]) -> (y: f32[2]) {
  %y = neg %x : f32[2]
  return %y
}
)");
}

TEST(ShrinkDimensions, BodiesOfLoopsShrinkToo) {
  ExpectShrunk(R"(
graph @f(%h: f32[64,24], %x: f32[10,64,24]) -> (h: f32[64,24]) {
  %last = scan %h, %x {body=graph @body(%h: f32[64,24], %x: f32[64,24]) -> (h: f32[64,24]) {
    %next = add %h, %x : f32[64,24]
    return %next
  }, length=10, carried=1, scanned=1} : f32[64,24]
  return %last
}
)",
               4, R"(
graph @f(%h: f32[8,4], %x: f32[2,8,4]) -> (h: f32[8,4]) {
  %last = scan %h, %x {body=graph @body(%h: f32[8,4], %x: f32[8,4]) -> (h: f32[8,4]) {
    %next = add %h, %x : f32[8,4]
    return %next
  }, length=2, carried=1, scanned=1} : f32[8,4]
  return %last
}
)");
}

TEST(ShrinkDimensions, ConstantsKeepTheirFirstElements) {
  const Shrunk shrunk = ShrinkDimensions(Parsed(R"(
graph @f(%x: f32[2,5]) -> (y: f32[2,5]) {
  %c = constant {value=dense<f32[2,5]: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10>} : f32[2,5]
  %y = add %x, %c : f32[2,5]
  return %y
}
)"),
                                         1);
  EXPECT_THAT(shrunk.program.ToString(), testing::HasSubstr("dense<f32[2,3]: 1.0, 2.0, 3.0, 6.0, 7.0, 8.0>"));
}

TEST(ShrinkDimensions, PositionsThatAreWrittenOutStay) {
  EXPECT_THAT(ShrinkDimensions(Parsed(R"(
graph @f(%x: f32[9,6]) -> (y: f32[9,6]) {
  %a = slice %x {start=[2, 0], limit=[6, 6], stride=[1, 1]} : f32[4,6]
  %y = pad %a {low=[2, 0], high=[3, 0], value=0.0} : f32[9,6]
  return %y
}
)"),
                               6)
                  .changes,
              IsEmpty());
}

// A program of four ranks that takes a mean for a sum differs after shrinking as before.
TEST(ShrinkDimensions, ProgramsThatDifferStillDo) {
  const Shrunk shrunk = ShrinkDimensions(Parsed(R"(
graph @step(%x: f32[64,60] split(0), %dz: f32[64,40] split(0), state %w: f32[60,40]) -> (%w: f32[60,40]) {
  %dw = matmul %x, %dz {transpose_a=true} : f32[60,40]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[60,40]
  return %w1
}
)"),
                                         4);
  passes::Pass distribute{"distribute", [](Graph& graph) -> absl::StatusOr<bool> {
                            const bool is_mean = graph.name() == "mean";
                            graph = Parsed("mesh {data=4}\n" + std::string(R"(
graph @step(%x: f32[4,12] split(0), %dz: f32[4,8] split(0), state %w: f32[12,8]) -> (%w: f32[12,8]) {
  %dw = matmul %x, %dz {transpose_a=true} : f32[12,8] partial(sum)
  %dw.1 = all_reduce %dw {axis=data, kind=)") +
                                           (is_mean ? "mean" : "sum") + R"(} : f32[12,8]
  %w1 = sgd %w, %dw.1 {learning_rate=0.1} : f32[12,8]
  return %w1
}
)");
                            return true;
                          }};
  Graph right = shrunk.program.Clone(), wrong = shrunk.program.Clone();
  wrong.set_name("mean");
  EXPECT_TRUE(RunPassesChecked({distribute}, right).ok());
  EXPECT_THAT(RunPassesChecked({distribute}, wrong).message(), testing::HasSubstr("all_reduce %dw.1"));
}

TEST(Factors, ASizeThatFollowsHasNoneOfItsOwn) {
  Factors factors;
  const Extent height = factors.New(100), half = factors.New(50);
  factors.Follow(half, {height}, [&] { return factors.NewSize(height) / 2; });
  factors.ChooseSizes(3, {});
  EXPECT_EQ(factors.NewSize(height), 4);  // 2 would leave a half of 1, and 3 is a multiple of 3
  EXPECT_EQ(factors.NewSize(half), 2);
  factors.Fix(half);
  factors.ChooseSizes(3, {});
  EXPECT_EQ(factors.NewSize(height), 100);
}

TEST(Factors, SizesThatFollowCanBeSplitAsBefore) {
  for (int64_t ranks : {2, 3, 4, 6, 8}) {
    for (int64_t m : {30, 64, 100, 101}) {
      for (int64_t n : {48, 50, 77, 400}) {
        Factors factors;
        const Extent a = factors.New(m), b = factors.New(n), c = factors.New(n), sum = factors.New(m + n),
                     sum_of_all = factors.New(m + n + n);
        const auto add = [&](const Extent& x, const Extent& y) { return factors.NewSize(x) + factors.NewSize(y); };
        factors.Follow(sum, {a, b}, [&] { return add(a, b); });
        factors.Follow(sum_of_all, {sum, c}, [&] { return add(sum, c); });
        factors.ChooseSizes(ranks, {});
        for (const Extent& each : {a, b, c, sum, sum_of_all}) {
          EXPECT_EQ(std::gcd(factors.NewSize(each), ranks), std::gcd(factors.OldSize(each), ranks));
        }
        EXPECT_EQ(factors.NewSize(sum), add(a, b));
        EXPECT_EQ(factors.NewSize(sum_of_all), add(sum, c));
        EXPECT_LT(factors.NewSize(sum_of_all), 60) << m << " + 2 * " << n << " on " << ranks;
      }
    }
  }
}

TEST(Factors, LargeSizesAreFoundInFewSteps) {
  Factors factors;
  const Extent whole = factors.New(1'000'000), places = factors.New(51);
  int64_t steps = 0;
  factors.Follow(places, {whole}, [&] {
    ++steps;
    return std::max<int64_t>(factors.NewSize(whole) - 999'949, 0);
  });
  factors.ChooseSizes(2, {});
  EXPECT_EQ(factors.NewSize(places), 51);
  EXPECT_LT(steps, 200);
}

TEST(Factors, ASizeThatFollowsIsThatOfARestoredSource) {
  Factors factors;
  const Extent height = factors.New(100), half = factors.New(50);
  factors.Follow(half, {height}, [&] { return factors.NewSize(height) / 2; });
  factors.ChooseSizes(1, {});
  EXPECT_EQ(factors.NewSize(half), 2);
  factors.Restore(height);
  EXPECT_EQ(factors.NewSize(half), 50);
  factors.Restore({});
  EXPECT_EQ(factors.NewSize(half), 2);
}

TEST(Factors, SizesDifferFromThoseThatStay) {
  Factors factors;
  factors.Fixed(3);  // a ratio is no size
  const Extent stays = factors.New(2), first = factors.New(100), second = factors.New(200);
  factors.Fix(stays);
  factors.ChooseSizes(1, {});
  EXPECT_EQ(factors.NewSize(first), 3);
  EXPECT_EQ(factors.NewSize(second), 4);
}

TEST(Factors, SizesDifferWhileThereAreSmallOnes) {
  Factors factors;
  std::vector<Extent> extents;
  for (int64_t size = 1000; size < 1014; ++size) extents.push_back(factors.New(size));
  factors.ChooseSizes(1, {});
  std::set<int64_t> sizes;
  for (const Extent& extent : extents) sizes.insert(factors.NewSize(extent));
  EXPECT_THAT(sizes, ElementsAre(2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13));
}

TEST(Factors, SizesThatDoNotDivideEachOtherStay) {
  Factors factors;
  const Extent six = factors.New(6), four = factors.New(4), result = factors.New(12), rest = factors.New(2);
  factors.Unify({six[0], four[0]}, {result[0], rest[0]});
  factors.ChooseSizes(1, {});
  EXPECT_EQ(factors.NewSize(six) * factors.NewSize(four), factors.NewSize(result) * factors.NewSize(rest));
}

TEST(CostOfRun, CountsIterations) {
  const auto loop = [](const std::string& length) {
    return CostOfRun(Parsed(R"(
graph @f(%h: f32[8]) -> (h: f32[8]) {
  %last = scan %h {body=graph @body(%h: f32[8]) -> (h: f32[8]) {
    %next = add %h, %h : f32[8]
    return %next
  }, length=)" + length + R"(, carried=1} : f32[8]
  return %last
}
)"));
  };
  EXPECT_EQ(loop("3") - loop("1"), 2 * 16);
}

}  // namespace
}  // namespace lockstep::verify
