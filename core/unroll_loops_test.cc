// The oracle is the meaning of the loop itself, which the interpreter runs.

#include "core/unroll_loops.h"

#include <string>
#include <utility>

#include "core/interpreter.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr char kLoop[] =
    R"(graph @loop(%h: f32[2], %xs: f32[3,2], %w: f32[2]) -> (last: f32[2], all: f32[3,2], total: f32[2]) {
  %last, %all, %total = scan %h, %xs, %w {body=graph @body(%c: f32[2], %x: f32[2], %k: f32[2]) -> (next: f32[2], out: f32[2], term: f32[2]) {
    %0 = mul %c, %k : f32[2] @"cell"
    %next = add %0, %x : f32[2] @"cell"
    %out = exp %next : f32[2] @"out"
    return %next, %out, %0
  }, length=3, carried=1, scanned=1, summed=1, reverse=REVERSE} : f32[2], f32[3,2], f32[2]
  return %last, %all, %total
}
)";

class Unrolled : public testing::TestWithParam<const char*> {};

TEST_P(Unrolled, MeansTheSame) {
  std::string text = kLoop;
  text.replace(text.find("REVERSE"), 7, GetParam());
  auto graph = ParseGraph(text);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<Tensor> inputs = {Tensor::Of<float>(Shape({2}), {1, -2}),
                                      Tensor::Of<float>(Shape({3, 2}), {1, 2, 3, 4, 5, 6}),
                                      Tensor::Of<float>(Shape({2}), {0.5, 0.25})};
  const auto expected = InterpretOneRank(*graph, inputs);
  ASSERT_TRUE(UnrollLoops(*graph, 100).ok());
  size_t cells = 0;
  std::string iterations;
  for (const Node& node : graph->nodes()) {
    EXPECT_FALSE(node.Is("scan"));
    cells += SplitIterations(node.source()).first == "cell" ? 1 : 0;
    iterations += node.Is("exp") ? node.source() + "; " : "";
  }
  EXPECT_EQ(cells, 6u);
  EXPECT_EQ(iterations, "out, iteration 0 of 3; out, iteration 1 of 3; out, iteration 2 of 3; ");
  const auto found = InterpretOneRank(*graph, inputs);
  ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
  EXPECT_EQ(*found, *expected);
}

INSTANTIATE_TEST_SUITE_P(, Unrolled, testing::Values("false", "true"));

TEST(UnrolledLoops, IterationsAreSplitFromASource) {
  EXPECT_EQ(SplitIterations("/log, iteration 1 of 2, iteration 0 of 8"),
            std::pair(std::string("/log"), std::string("iteration 1 of 2, iteration 0 of 8")));
  EXPECT_EQ(SplitIterations("/log, /exp"), std::pair(std::string("/log, /exp"), std::string()));
}

TEST(UnrolledLoops, ALargeLoopStays) {
  std::string text = kLoop;
  text.replace(text.find("REVERSE"), 7, "false");
  auto graph = ParseGraph(text);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::string before = graph->ToString();
  ASSERT_TRUE(UnrollLoops(*graph, 8).ok());
  EXPECT_EQ(graph->ToString(), before);
}

}  // namespace
}  // namespace lockstep
