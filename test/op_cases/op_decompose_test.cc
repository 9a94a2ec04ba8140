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

}  // namespace
}  // namespace lockstep
