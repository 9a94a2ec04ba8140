// Every row of the table of op cases: the CPU backend against the interpreter, on one and on two threads.

#include "backends/cpu/compare_with_interpreter.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

// Relative to the largest result: both round once an operation, in different orders.
double ToleranceOf(const OpCase& row) {
  double tolerance = 1e-5;
  for (const CaseOperand& operand : row.operands) {
    if (operand.type.dtype == DType::kBF16) tolerance = 2e-2;
    if (operand.type.dtype == DType::kF16) tolerance = 4e-3;
  }
  return tolerance;
}

class OpCases : public testing::TestWithParam<OpCase> {};

TEST_P(OpCases, AgreesWithInterpreter) {
  const OpCase& row = GetParam();
  const auto graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int threads : {1, 2}) {
    CompileOptions options;
    options.threads = threads;
    ExpectAgreesWithInterpreter(*graph, RankInputs(row), ToleranceOf(row), options);
  }
}

std::string NameOf(const testing::TestParamInfo<OpCase>& info) {
  return std::to_string(info.index) + "_" + info.param.op;
}

INSTANTIATE_TEST_SUITE_P(All, OpCases, testing::ValuesIn(AcceptedOpCases()), NameOf);

}  // namespace
}  // namespace lockstep
