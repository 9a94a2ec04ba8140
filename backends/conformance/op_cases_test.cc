// Compares the backend with the interpreter on every op case, with one thread and with two.

#include <string>
#include <vector>

#include "backends/conformance/compare_with_interpreter.h"
#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"
#include "test/op_cases/special_values.h"
#include "test/op_cases/taps_over_zeros.h"

namespace lockstep {
namespace {

// Relative to the largest result: both round once per operation, in different orders.
double ToleranceOf(const OpCase& row) {
  double tolerance = row.attributes.contains("wire") ? 2e-2 : 1e-5;  // 2e-2 because the wire is bf16
  for (const CaseOperand& operand : row.operands) {
    if (operand.type.dtype == DType::kBF16) tolerance = 2e-2;
    if (operand.type.dtype == DType::kF16) tolerance = 4e-3;
  }
  return tolerance;
}

// NCCL does not define the minimum and maximum of NaN and a number.
bool IsMinOrMaxOfRanks(const OpCase& row) {
  const auto kind = row.attributes.find("kind");
  if (row.ranks == 0 || kind == row.attributes.end()) return false;
  const auto& name = std::get<std::string>(kind->second);
  return name == "min" || name == "max";
}

// cuDNN has engines that skip taps over padding and engines that multiply them by zeros, and chooses by dtype, shape
// and GPU: on an H200 it skipped them in f64, and multiplied in gradients of inputs in f32. The fake does what the
// interpreter does.
bool LeavesTapsOpen(const OpCase& row) {
  return IsExempt(row, Exemption::kTapsOverZeros) || (HasTaps(row) && IsGpu() && !IsFake());
}

// Returns the accepted values of a rank's only result.
std::vector<Tensor> Accepted(const OpCase& row, const std::vector<Tensor>& operands, const Tensor& interpreted) {
  if (!LeavesTapsOpen(row)) return {interpreted};
  OverZeros over_zeros = ComputeOverZeros(row, operands);
  return {std::move(over_zeros.left_out), std::move(over_zeros.multiplied)};
}

class OpCases : public testing::TestWithParam<OpCase> {};

TEST_P(OpCases, AgreesWithInterpreter) {
  const OpCase& row = GetParam();
  const auto graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int threads : !IsGpu() && TestsEverything() ? std::vector{1, 2} : std::vector{IsGpu() ? 1 : 2}) {
    CompileOptions options;
    options.threads = threads;
    ExpectAgreesWithInterpreter(*graph, RankInputs(row), ToleranceOf(row), options);
  }
}

using OpCasesWithSpecialValues = OpCases;

// NaN, infinities, zeros of both signs and denormals must have the same effect as in the interpreter.
TEST_P(OpCasesWithSpecialValues, TreatsSpecialValuesAsTheInterpreter) {
  const OpCase& row = GetParam();
  if ((IsFake() && row.is_large) || (IsMinOrMaxOfRanks(row) && !ReducesInRankOrder())) return;
  const std::vector<SpecialInputs> specials = SpecialRankInputs(row);
  if (specials.empty()) return;
  const auto graph = CaseGraph(row);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::vector<std::vector<Tensor>>> inputs;
  for (const SpecialInputs& special : specials) inputs.push_back(special.inputs);
  CompileOptions options;
  options.threads = 2;
  const auto actual = RunSeveralInProcess(*graph, TestedBackend(), inputs, options);
  if (LacksKernel(actual.status())) GTEST_SKIP() << actual.status();
  ASSERT_TRUE(actual.ok()) << actual.status();
  for (size_t k = 0; k < specials.size(); ++k) {
    const auto expected = Interpret(*graph, specials[k].inputs);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (size_t rank = 0; rank < expected->size(); ++rank) {
      for (size_t i = 0; i < (*expected)[rank].size(); ++i) {
        const std::vector<Tensor> accepted = Accepted(row, specials[k].inputs[rank], (*expected)[rank][i]);
        EXPECT_EQ(SpecialDifference(row, (*actual)[k][rank][i], accepted, ToleranceOf(row)), "")
            << row.ToString() << " with " << specials[k].name << ": result " << i << " of rank " << rank;
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<OpCase>& info) {
  return std::to_string(info.index) + "_" + info.param.op;
}

INSTANTIATE_TEST_SUITE_P(All, OpCases, testing::ValuesIn(AcceptedOpCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(Some, OpCasesWithSpecialValues, testing::ValuesIn(SomeOf(AcceptedOpCases())), NameOf);

}  // namespace
}  // namespace lockstep
