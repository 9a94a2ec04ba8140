#include "verify/random_inputs.h"

#include <algorithm>

#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep::verify {
namespace {

// The largest of the integers that the input %i of a graph gets.
int64_t Largest(const std::string& text) {
  const auto graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status() << text;
  int64_t largest = -1;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<ExactTensor> inputs = RandomInputs(*graph, seed);
    const Tensor& integers = inputs[static_cast<size_t>(graph->FindInput("i") - graph->inputs().data())].integers();
    for (int64_t k = 0; k < integers.num_elements(); ++k) {
      EXPECT_GE(integers.At(k), 0);
      largest = std::max(largest, static_cast<int64_t>(integers.At(k)));
    }
  }
  return largest;
}

std::string UsedBy(const std::string& inputs, const std::string& node, const std::string& type) {
  return "graph @f(%i: i64[8]" + inputs + ") -> (y: " + type + ") {\n  %y = " + node + " : " + type +
         "\n  return %y\n}\n";
}

TEST(RandomInputs, IntegersAreThoseThatAllReadersAccept) {
  EXPECT_EQ(Largest(UsedBy("", "neg %i", "i64[8]")), 4);  // restricted by no op
  EXPECT_EQ(Largest(UsedBy(", %x: f32[3]", "gather %x, %i {dim=0}", "f32[8]")), 2);
  EXPECT_EQ(Largest(UsedBy(", %x: f32[9]", "gather %x, %i {dim=0}", "f32[8]")), 4);
  EXPECT_EQ(Largest(UsedBy(", %x: f32[2], %u: f32[8]", "scatter %x, %i, %u {dim=0, kind=max}", "f32[2]")), 1);
  EXPECT_EQ(Largest(UsedBy("", "within %i {high=2, low=0, what=\"class\"}", "i64[8]")), 1);
  EXPECT_EQ(Largest(UsedBy(", %u: f32[8]", "scatter_sum %i, %u {dim=0, size=3}", "f32[3]")), 2);
  EXPECT_EQ(Largest(R"(
graph @f(%i: i64[8], %x: f32[8,2]) -> (y: f32[]) {
  %y, %p = softmax_cross_entropy %x, %i {scale=1.0} : f32[], f32[8,2]
  return %y
}
)"),
            1);
}

TEST(RandomInputs, ThroughIntegersMadeOfThemAndThroughBodies) {
  EXPECT_EQ(Largest(R"(
graph @f(%i: i64[8], %x: f32[5], %z: f32[3]) -> (y: f32[8], t: f32[8]) {
  %y = gather %x, %i {dim=0} : f32[8]
  %r = reshape %i {shape=[8]} : i64[8]
  %t = gather %z, %r {dim=0} : f32[8]
  return %y, %t
}
)"),
            2);
  EXPECT_EQ(Largest(R"(
graph @f(%i: i64[8], %x: f32[2]) -> (y: f32[8]) {
  %y = fusion %x, %i {body=graph @body(%x: f32[2], %i: i64[8]) -> (y: f32[8]) {
    %y = gather %x, %i {dim=0} : f32[8]
    return %y
  }} : f32[8]
  return %y
}
)"),
            1);
}

TEST(RandomInputs, SettingsHaveTheirValues) {
  const auto graph =
      ParseGraph("graph @f(setting %rate: f64[] in [0.0, inf) = 0.5) -> (y: f64[]) {\n  return %rate\n}\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(RandomInputs(*graph, 1)[0].numbers()[0], Exact::Of(1) / Exact::Of(2));
}

TEST(RandomInputs, RowsAreOnesAndZeros) {
  const auto graph = ParseGraph("graph @f(%rows: f32[40]) -> (y: f32[40]) {\n  return %rows\n}\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<Exact> rows = RandomInputs(*graph, seed)[0].numbers();
    EXPECT_EQ(rows[0], Exact::Of(1));
    for (const Exact& row : rows) EXPECT_TRUE(row == Exact::Of(0) || row == Exact::Of(1));
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const Exact& row) { return row.is_zero(); }));
  }
}

}  // namespace
}  // namespace lockstep::verify
