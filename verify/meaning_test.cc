// The exact meaning of ops, compared with their reference meaning on integers, which floats represent exactly. The
// integers are multiples of many small numbers, so that means are integers as well; for products they are 1 and -1.

#include "verify/meaning.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/interpreter.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case.h"
#include "test/op_cases/op_case_graph.h"
#include "verify/exact_interpreter.h"

namespace lockstep::verify {
namespace {

// Ops whose results are rational functions of their operands.
bool IsRational(const OpDef& op) {
  static const std::set<std::string_view> kNames = {"add",
                                                    "sub",
                                                    "mul",
                                                    "div",
                                                    "neg",
                                                    "select",
                                                    "compare",
                                                    "convert",
                                                    "matmul",
                                                    "convolution",
                                                    "convolution_grad_input",
                                                    "convolution_grad_filter",
                                                    "avg_pool",
                                                    "avg_pool_grad",
                                                    "overlap_add",
                                                    "scatter_sum",
                                                    "cumulative_sum",
                                                    "cumulative_prod",
                                                    "reduce_sum",
                                                    "reduce_prod",
                                                    "all_reduce",
                                                    "reduce_scatter"};
  return kNames.contains(op.name()) || (op.has_trait(kMovement) && !op.has_trait(kGenerator)) ||
         (op.collective() && !TraitsOf(*op.collective()).reduces);
}

// Comparisons of order are random in exact arithmetic, but for equality.
bool IsOrdered(const OpCase& row) {
  for (const auto& [name, value] : row.attributes) {
    const std::string text = AttributeToString(value);
    if ((name == "direction" && text != "eq" && text != "ne") || (name == "kind" && (text == "max" || text == "min")))
      return true;
  }
  return false;
}

bool Multiplies(const OpCase& row) {
  const auto kind = row.attributes.find("kind");
  return row.op.ends_with("prod") || (kind != row.attributes.end() && AttributeToString(kind->second) == "prod");
}

// Exact numbers do not wrap around, as integers of 8 bits do.
bool HasInt8(const OpCase& row) {
  const auto dtype = row.attributes.find("dtype");
  return (dtype != row.attributes.end() && AttributeToString(dtype->second) == "i8") ||
         std::any_of(row.operands.begin(), row.operands.end(),
                     [](const CaseOperand& operand) { return operand.type.dtype == DType::kI8; });
}

class ExactMeaningTest : public testing::TestWithParam<OpCase> {};

TEST_P(ExactMeaningTest, AgreesWithTheReferenceMeaningOnIntegers) {
  const OpCase row = InDouble(GetParam());
  auto graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::vector<Tensor>> inputs = RankInputs(row);
  for (std::vector<Tensor>& of_rank : inputs) {
    for (Tensor& input : of_rank) {
      if (input.dtype() != DType::kF64) continue;
      for (double& x : input.mutable_data<double>())
        x = Multiplies(row) ? (x < 0 ? -1 : 1) : 5040 * (x < 0 ? std::ceil(3 * x) - 1 : std::floor(3 * x) + 1);
    }
  }
  const auto expected = Interpret(*graph, inputs);
  if (!expected.ok()) GTEST_SKIP() << expected.status();
  std::vector<RankTensors> exact_inputs(graph->inputs().size());
  for (const std::vector<Tensor>& of_rank : inputs) {
    for (size_t i = 0; i < of_rank.size(); ++i) exact_inputs[i].push_back(ExactTensor::Of(of_rank[i]));
  }
  Assumptions assumptions;
  const auto values = RunExactly(*graph, exact_inputs, assumptions);
  ASSERT_TRUE(values.ok()) << values.status();
  for (size_t rank = 0; rank < expected->size(); ++rank) {
    for (size_t i = 0; i < graph->results().size(); ++i) {
      const ExactTensor wanted = ExactTensor::Of((*expected)[rank][i]);
      const auto difference = values->at(graph->results()[i].value)[rank].FirstDifference(wanted);
      EXPECT_FALSE(difference) << "element " << *difference << " of result " << i << " on rank " << rank
                               << ", expected " << (*expected)[rank][i];
    }
  }
}

std::vector<OpCase> RationalCases() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AcceptedOpCases()) {
    if (IsRational(GetOp(row.op)) && !IsOrdered(row) && !HasInt8(row)) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(All, ExactMeaningTest, testing::ValuesIn(RationalCases()),
                         [](const auto& info) { return std::to_string(info.index) + "_" + info.param.op; });

}  // namespace
}  // namespace lockstep::verify
