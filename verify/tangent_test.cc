#include "verify/tangent.h"

#include <string>
#include <vector>

#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep::verify {
namespace {

// The tangent of the one result of a graph, for given numbers and directions of its inputs.
absl::StatusOr<ExactTensor> TangentOf(const std::string& text, const std::vector<std::vector<double>>& numbers,
                                      const std::vector<std::vector<double>>& directions) {
  ASSIGN_OR_RETURN(const Graph graph, ParseGraph(text));
  Tangents given;
  std::vector<RankTensors> inputs;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Value input = graph.inputs()[i].value;
    inputs.push_back({ExactTensor::Of(Tensor::Of<double>(input.shape(), numbers[i]))});
    given.emplace(input, ExactTensor::Of(Tensor::Of<double>(input.shape(), directions[i])));
  }
  Assumptions assumptions;
  ASSIGN_OR_RETURN(const ExactValues values, RunExactly(graph, inputs, assumptions));
  const Value result = graph.results()[0].value;
  ASSIGN_OR_RETURN(const Tangents tangents, RunTangents(graph, values, given, {result}, assumptions));
  const auto found = tangents.find(result);
  return found == tangents.end() ? ExactTensor(result.type()) : found->second;
}

// The tangent of `op`, of type f64 and the operands' shapes, in numbers.
std::vector<Exact> TangentOfOp(const std::string& op, const std::vector<std::vector<double>>& numbers,
                               const std::vector<std::vector<double>>& directions, const std::string& type) {
  std::string inputs, operands;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string name = "%x" + std::to_string(i);
    inputs += (i == 0 ? "" : ", ") + name + ": f64[" + std::to_string(numbers[i].size()) + "]";
    operands += (i == 0 ? " " : ", ") + name;
  }
  const size_t space = op.find(' ');
  const std::string attributes = space == std::string::npos ? "" : op.substr(space);
  const auto tangent = TangentOf("graph @f(" + inputs + ") -> (y: " + type + ") {\n  %y = " + op.substr(0, space) +
                                     operands + attributes + " : " + type + "\n  return %y\n}\n",
                                 numbers, directions);
  LOCKSTEP_CHECK(tangent.ok()) << op << ": " << tangent.status();
  return tangent->numbers();
}

std::vector<Exact> Numbers(const std::vector<double>& numbers) {
  std::vector<Exact> exact;
  for (double number : numbers) exact.push_back(Exact::Of(number, DType::kF64));
  return exact;
}

TEST(RunTangents, EqualElementsFollowTheDocsOfTheOps) {
  const std::string pair = "f64[2]", scalar = "f64[]";
  EXPECT_EQ(TangentOfOp("max", {{3, 3}, {3, 3}}, {{4, 1}, {2, 7}}, pair), Numbers({3, 4}));
  EXPECT_EQ(TangentOfOp("min", {{3, 3}, {3, 3}}, {{4, 1}, {2, 7}}, pair), Numbers({3, 4}));
  EXPECT_EQ(TangentOfOp("relu", {{0, 0}}, {{4, 1}}, pair), Numbers({0, 0}));
  EXPECT_EQ(TangentOfOp("abs", {{0, 0}}, {{4, 1}}, pair), Numbers({0, 0}));
  EXPECT_EQ(TangentOfOp("reduce_max {dims=[0]}", {{5, 5, 5}}, {{1, 2, 6}}, scalar), Numbers({3}));
  EXPECT_EQ(TangentOfOp("reduce_min {dims=[0]}", {{5, 5, 5}}, {{1, 2, 6}}, scalar), Numbers({3}));
  EXPECT_EQ(TangentOfOp("floor", {{5, 6}}, {{1, 2}}, pair), Numbers({0, 0}));
  EXPECT_EQ(TangentOfOp("stop_gradient", {{5, 6}}, {{1, 2}}, pair), Numbers({0, 0}));
}

TEST(RunTangents, TheFirstOfEqualElementsOfAPoolAndOfTopK) {
  const auto tangent = TangentOf(R"(
graph @f(%x: f64[1,1,1,4]) -> (y: f64[1,1,1,2]) {
  %y = max_pool %x {window=[1,2], stride=[1,2], padding_low=[0,0], padding_high=[0,0], dilation=[1,1]} : f64[1,1,1,2]
  return %y
}
)",
                                 {{3, 3, 7, 7}}, {{1, 2, 4, 8}});
  ASSERT_TRUE(tangent.ok()) << tangent.status();
  EXPECT_EQ(tangent->numbers(), Numbers({1, 4}));
  const auto top = TangentOf(R"(
graph @f(%x: f64[4]) -> (y: f64[3]) {
  %y, %at = top_k %x {dim=0, k=3, largest=true} : f64[3], i64[3]
  return %y
}
)",
                             {{5, 5, 5, 5}}, {{1, 2, 4, 8}});
  ASSERT_TRUE(top.ok()) << top.status();
  EXPECT_EQ(top->numbers(), Numbers({1, 2, 4}));
}

// Updates go to elements 0, 0 and 1. Element 0 is equal to one of its two updates, element 1 to its only one.
TEST(RunTangents, EqualElementsOfAScatterHaveTheMeanOfTheirTangents) {
  for (const std::string kind : {"max", "min"}) {
    const std::string other = kind == "max" ? "-inf" : "inf";
    const auto tangent = TangentOf(R"(
graph @f(%x: f64[3], %u: f64[2]) -> (y: f64[3]) {
  %at = constant {value=dense<i64[3]: 0, 0, 1>} : i64[3]
  %far = constant {value=dense<f64[1]: )" +
                                       other + R"(>} : f64[1]
  %all = concat %u, %far {dim=0} : f64[3]
  %order = constant {value=dense<i64[3]: 0, 2, 1>} : i64[3]
  %updates = gather %all, %order {dim=0} : f64[3]
  %y = scatter %x, %at, %updates {dim=0, kind=)" +
                                       kind + R"(} : f64[3]
  return %y
}
)",
                                   {{5, 7, 8}, {5, 7}}, {{1, 2, 4}, {3, 20}});
    ASSERT_TRUE(tangent.ok()) << tangent.status();
    EXPECT_EQ(tangent->numbers(), Numbers({2, 11, 4})) << kind;
  }
}

TEST(RunTangents, ProductsWithZeros) {
  const auto product = [](const std::vector<double>& x) {
    return TangentOfOp("reduce_prod {dims=[0]}", {x}, {{5, 7, 11}}, "f64[]");
  };
  EXPECT_EQ(product({2, 3, 4}), Numbers({5 * 12 + 7 * 8 + 11 * 6}));
  EXPECT_EQ(product({2, 0, 4}), Numbers({7 * 8}));
  EXPECT_EQ(product({0, 0, 4}), Numbers({0}));
  EXPECT_EQ(TangentOfOp("cumulative_prod {dim=0}", {{2, 0, 4}}, {{5, 7, 11}}, "f64[3]"), Numbers({5, 14, 56}));
}

TEST(RunTangents, AnOpWithoutARuleIsNamed) {
  const auto tangent = TangentOf(R"(
graph @f(%x: f64[1,1,2,2], %dy: f64[1,1,1,1]) -> (y: f64[1,1,2,2]) {
  %y = max_pool_grad %x, %dy {window=[2,2], stride=[1,1], padding_low=[0,0], padding_high=[0,0], dilation=[1,1]}
      : f64[1,1,2,2]
  return %y
}
)",
                                 {{1, 2, 3, 4}, {1}}, {{1, 2, 3, 4}, {1}});
  EXPECT_EQ(tangent.status().message(), "max_pool_grad %y: max_pool_grad has no exact derivative");
}

}  // namespace
}  // namespace lockstep::verify
