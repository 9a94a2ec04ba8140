// Compares the results for taps over zeros with the interpreter, which multiplies with the zeros of padding and leaves
// out those of dy. No other results are accepted.

#include "test/op_cases/taps_over_zeros.h"

#include <cmath>
#include <limits>

#include "core/interpreter.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"
#include "test/op_cases/special_values.h"

namespace lockstep {
namespace {

std::vector<OpCase> RowsWithTaps() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AcceptedOpCases()) {
    if (HasTaps(row) && row.operands[0].type.num_elements() > 0 && row.operands[1].type.num_elements() > 0)
      rows.push_back(row);
  }
  return rows;
}

Tensor InterpretedTaps(const OpCase& row, const std::vector<Tensor>& operands) {
  return Interpret(CaseGraph(row).value(), {operands}).value()[0][0];
}

TEST(TapsOverZeros, OneOfTheResultsIsTheInterpreters) {
  int differ = 0;
  for (const OpCase& row : RowsWithTaps()) {
    for (const SpecialInputs& special : SpecialRankInputs(row)) {
      SCOPED_TRACE(row.ToString() + " with " + special.name);
      const OverZeros results = ComputeOverZeros(row, special.inputs[0]);
      const bool leaves_out = row.op == "convolution_grad_input";
      EXPECT_EQ(SpecialDifference(row, leaves_out ? results.left_out : results.multiplied,
                                  InterpretedTaps(row, special.inputs[0]), 1e-2),
                "");
      for (int64_t i = 0; i < results.left_out.num_elements(); ++i) {
        const double without = results.left_out.At(i), with = results.multiplied.At(i);
        if (without == with || (std::isnan(without) && std::isnan(with))) continue;
        EXPECT_TRUE(std::isnan(with)) << with << " against " << without;
        ++differ;
      }
    }
  }
  EXPECT_GT(differ, 1000);
}

TEST(TapsOverZeros, OrdinaryNumbersHaveOneResult) {
  for (const OpCase& row : RowsWithTaps()) {
    const std::vector<Tensor> operands = RankInputs(row)[0];
    const OverZeros results = ComputeOverZeros(row, operands);
    EXPECT_EQ(results.left_out, results.multiplied) << row.ToString();
    EXPECT_EQ(SpecialDifference(row, results.left_out, InterpretedTaps(row, operands), 1e-2), "") << row.ToString();
  }
}

// A filter of infinity and 1 over [2, 3] with one zero before it.
TEST(TapsOverZeros, NothingElseIsAccepted) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const OpCase row =
      Case("convolution", {F64({1, 1, 2}), F64({1, 1, 2})},
           {{"stride", Ints{1}}, {"padding_low", Ints{1}}, {"padding_high", Ints{0}}, {"dilation", Ints{1}}});
  const auto of = [](double first, double second) { return Tensor::Of<double>({1, 1, 2}, {first, second}); };
  const OverZeros results = ComputeOverZeros(row, {of(2, 3), of(inf, 1)});
  const Tensor accepted[] = {results.left_out, results.multiplied};
  EXPECT_EQ(SpecialDifference(row, of(2, inf), accepted, 0), "");
  EXPECT_EQ(SpecialDifference(row, of(nan, inf), accepted, 0), "");
  EXPECT_EQ(SpecialDifference(row, of(inf, inf), accepted, 0),
            "element 0 is inf, expected 2.0 (largest 2.0) or nan (largest 0.0)");
  EXPECT_NE(SpecialDifference(row, of(2.5, inf), accepted, 0), "");
  EXPECT_NE(SpecialDifference(row, of(2, nan), accepted, 0), "") << "no zero meets the infinity there";
  EXPECT_NE(SpecialDifference(row, of(2, 3), accepted, 0), "") << "an infinity must not be lost";
  const OverZeros with_nan = ComputeOverZeros(row, {of(2, 3), of(1, nan)});
  const Tensor must_be_nan[] = {with_nan.left_out, with_nan.multiplied};
  EXPECT_EQ(SpecialDifference(row, of(nan, nan), must_be_nan, 0), "");
  EXPECT_NE(SpecialDifference(row, of(2, nan), must_be_nan, 0), "") << "NaN must not be lost";
}

}  // namespace
}  // namespace lockstep
