// Compares decompositions with the reference meaning, for every row of an op that has one.

#include <set>

#include "core/interpreter.h"
#include "gtest/gtest.h"
#include "passes/legalize/legalize.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

// The tolerance relative to the largest result. 16-bit floats are rounded between the parts of some ops.
double ToleranceOf(const OpCase& row) {
  double tolerance = 1e-5;
  for (const CaseOperand& operand : row.operands) {
    if (operand.type.dtype == DType::kBF16) tolerance = 2e-2;
    if (operand.type.dtype == DType::kF16) tolerance = 4e-3;
  }
  return tolerance;
}

std::vector<OpCase> DecomposedRows() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AcceptedOpCases()) {
    if (FindOp(row.op)->decompose() && row.ranks == 0) rows.push_back(row);
  }
  return rows;
}

class Decompositions : public testing::TestWithParam<OpCase> {};

TEST_P(Decompositions, ComputeWhatTheOpDoes) {
  const OpCase& row = GetParam();
  absl::StatusOr<Graph> graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto expected = Interpret(*graph, RankInputs(row));
  const auto changed = passes::Legalize([&](const Node& node) { return !node.Is(row.op); }).run(*graph);
  ASSERT_TRUE(changed.ok()) << changed.status();
  ASSERT_TRUE(*changed);
  const auto actual = Interpret(*graph, RankInputs(row));
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(actual.ok()) << actual.status();
  for (size_t i = 0; i < (*expected)[0].size(); ++i)
    EXPECT_LE(RelativeDifference((*actual)[0][i], (*expected)[0][i]), ToleranceOf(row)) << "result " << i;
}

std::string NameOf(const testing::TestParamInfo<OpCase>& info) {
  return std::to_string(info.index) + "_" + info.param.op;
}

INSTANTIATE_TEST_SUITE_P(All, Decompositions, testing::ValuesIn(DecomposedRows()), NameOf);

TEST(DecomposedOps, Attention) {
  std::set<std::string> ops;
  for (const OpCase& row : DecomposedRows()) ops.insert(row.op);
  for (const char* op : {"attention", "attention_grad", "attention_mask_grad", "softmax"})
    EXPECT_TRUE(ops.contains(op));
}

// The mean of squares less the squared mean is below 0 by rounding for some numbers of equal elements.
TEST(DecomposedOps, ANormalisationInOnePassHasNoNegativeVariance) {
  const AttributeMap attributes = {{"epsilon", 1e-3}, {"one_pass", true}};
  for (int64_t count = 2; count < 100; ++count) {
    const Tensor x = Tensor::Full({DType::kF32, {count, 1}}, 1000000.3);
    const OpCase row =
        Case("batch_norm_training", {x, Tensor::Of<float>({1}, {2}), Tensor::Of<float>({1}, {3})}, attributes);
    absl::StatusOr<Graph> graph = CaseGraph(row);
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_TRUE(passes::Legalize([](const Node& node) { return !node.Is("batch_norm_training"); }).run(*graph).ok());
    const auto results = Interpret(*graph, RankInputs(row));
    ASSERT_TRUE(results.ok()) << results.status();
    const std::vector<Tensor>& each = (*results)[0];
    EXPECT_EQ(each[0].At(0), 3) << count;
    EXPECT_EQ(each[1].At(0), x.At(0)) << count;
    EXPECT_GE(each[2].At(0), 0) << count;
  }
}

}  // namespace
}  // namespace lockstep
