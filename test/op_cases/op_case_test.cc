// All tests that are derived from a row of the table, except those of placement (op_placement_test.cc).

#include <algorithm>
#include <cmath>
#include <set>

#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "core/verifier.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

std::vector<OpCase> RowsWithGradient() {
  std::vector<OpCase> rows;
  for (const OpCase& row : AllOpCases()) {
    if (GradientIsCompared(row)) rows.push_back(row);
  }
  return rows;
}

std::string RowName(const testing::TestParamInfo<OpCase>& info) {
  return info.param.op + "_" + std::to_string(info.index) +
         (info.param.refused.empty() ? "" : "_" + info.param.refused);
}

// --- Accepted rows ---------------------------------------------------------------------------------------------------

class OpCaseTest : public testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override {
    SCOPED_TRACE(GetParam().ToString());
    absl::StatusOr<Graph> graph = CaseGraph(GetParam());
    ASSERT_TRUE(graph.ok()) << GetParam().ToString() << ": " << graph.status();
    graph_ = *std::move(graph);
  }
  Graph graph_;
};

TEST_P(OpCaseTest, InferredTypesAreThoseOfTheEvaluation) {
  const auto results = Interpret(graph_, RankInputs(GetParam()));
  ASSERT_TRUE(results.ok()) << GetParam().ToString() << ": " << results.status();
  for (const std::vector<Tensor>& of_rank : *results) {
    ASSERT_EQ(of_rank.size(), graph_.results().size());
    for (size_t i = 0; i < of_rank.size(); ++i)
      EXPECT_EQ(of_rank[i].type(), graph_.results()[i].value.type()) << GetParam().ToString();
  }
  EXPECT_TRUE(VerifyStructure(graph_).ok()) << VerifyStructure(graph_);
}

TEST_P(OpCaseTest, TextParsesBackToTheSameText) {
  const std::string text = graph_.ToString();
  const absl::StatusOr<Graph> parsed = ParseGraph(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status() << "\n" << text;
  EXPECT_EQ(parsed->ToString(), text);
}

INSTANTIATE_TEST_SUITE_P(Rows, OpCaseTest, testing::ValuesIn(AcceptedOpCases()), RowName);

// --- Refused rows ----------------------------------------------------------------------------------------------------

class RefusedOpCaseTest : public testing::TestWithParam<OpCase> {};

TEST_P(RefusedOpCaseTest, NamesTheConstraint) {
  const absl::StatusOr<Graph> graph = CaseGraph(GetParam());
  // Constraints on values, such as the range of a label, are checked by the evaluation.
  const absl::Status status = graph.ok() ? Interpret(*graph, RankInputs(GetParam())).status() : graph.status();
  ASSERT_FALSE(status.ok()) << GetParam().ToString() << " was accepted";
  const std::string expected = GetParam().op + " (" + GetParam().refused + "): ";
  EXPECT_EQ(status.message().substr(0, expected.size()), expected) << status;
}

INSTANTIATE_TEST_SUITE_P(Rows, RefusedOpCaseTest, testing::ValuesIn(RefusedOpCases()), RowName);

// --- Gradients -------------------------------------------------------------------------------------------------------

class GradientTest : public testing::TestWithParam<OpCase> {};

// The sum of the ranks' losses.
double TotalLoss(const GradientGraph& made, const std::vector<std::vector<Tensor>>& inputs) {
  const auto results = Interpret(made.graph, inputs);
  EXPECT_TRUE(results.ok()) << results.status();
  double loss = 0;
  for (const std::vector<Tensor>& of_rank : *results) loss += of_rank[0].At(0);
  return loss;
}

TEST_P(GradientTest, AgreesWithCentralDifferencesAndIsNotZero) {
  const OpCase row = InDouble(GetParam());
  const absl::StatusOr<GradientGraph> made = MakeGradientGraph(row);
  ASSERT_TRUE(made.ok()) << row.ToString() << ": " << made.status();
  std::vector<std::vector<Tensor>> inputs = RankInputs(row);
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    OpCase cotangents;
    for (const TensorType& type : made->cotangents) cotangents.operands.push_back(type);
    for (Tensor& cotangent : CaseInputs(cotangents, 100 + rank)) inputs[rank].push_back(std::move(cotangent));
  }
  const auto results = Interpret(made->graph, inputs);
  ASSERT_TRUE(results.ok()) << row.ToString() << ": " << results.status();

  for (size_t k = 0; k < made->operands.size(); ++k) {
    const size_t operand = made->operands[k];
    double largest = 0, worst = 0;
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      for (int64_t at = 0; at < inputs[rank][operand].num_elements(); at += UnderSanitizer() ? 10 : 1) {
        const double gradient = (*results)[rank][1 + k].At(at);
        const Tensor original = inputs[rank][operand];
        const double x = original.At(at), step = 1e-5 * std::max(1.0, std::fabs(x));
        double losses[2];
        for (int side : {0, 1}) {
          Tensor moved = original;
          moved.mutable_data<double>()[static_cast<size_t>(at)] = x + (side == 1 ? step : -step);
          inputs[rank][operand] = moved;
          losses[side] = TotalLoss(*made, inputs);
        }
        inputs[rank][operand] = original;
        const double difference = (losses[1] - losses[0]) / (2 * step);
        largest = std::max({largest, std::fabs(gradient), std::fabs(difference)});
        worst = std::isfinite(gradient) ? std::max(worst, std::fabs(gradient - difference))
                                        : std::numeric_limits<double>::infinity();
      }
    }
    EXPECT_LE(worst, row.gradient_tolerance * std::max(1.0, largest)) << row.ToString() << ", operand " << operand;
    if (UnderSanitizer()) continue;  // the row with a nonzero gradient may be one that was left out
    const bool zero = std::find(row.zero_gradient.begin(), row.zero_gradient.end(), operand) != row.zero_gradient.end();
    if (zero) EXPECT_LE(largest, row.gradient_tolerance) << row.ToString() << ", operand " << operand;
    else EXPECT_GT(largest, 1e-3) << row.ToString() << ", operand " << operand << ": the gradient is all zero";
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, GradientTest, testing::ValuesIn(RowsWithGradient()), RowName);

// --- Completeness ----------------------------------------------------------------------------------------------------

TEST(Completeness, EveryOpIsWhollyDefined) {
  ASSERT_GT(AllOps().size(), 40U);
  for (const OpDef* op : AllOps()) {
    SCOPED_TRACE(op->name());
    EXPECT_FALSE(op->doc().empty());
    EXPECT_NE(static_cast<bool>(op->eval()), static_cast<bool>(op->ranks_eval())) << "one reference meaning";
    EXPECT_NE(static_cast<bool>(op->vjp()), !op->no_gradient().empty())
        << "a gradient, or the reason why there is none";
    EXPECT_TRUE(static_cast<bool>(op->place()));
    EXPECT_EQ(FindOp(op->name()), op);
  }
}

TEST(Completeness, EveryOpHasRows) {
  std::set<std::string> ops, with_gradient;
  for (const OpCase& row : AllOpCases()) {
    if (row.refused.empty()) ops.insert(row.op);
    if (GradientIsCompared(row)) with_gradient.insert(row.op);
  }
  for (const OpDef* op : AllOps()) {
    EXPECT_TRUE(ops.contains(op->name())) << op->name() << " has no row in test/op_cases";
    if (op->vjp()) {
      EXPECT_TRUE(with_gradient.contains(op->name())) << op->name() << " has no row whose gradient is compared";
    }
  }
}

TEST(Completeness, EveryOpHasARowWithoutElements) {
  const std::set<std::string> never_empty = {
      "axis_index",           // a scalar
      "batch_norm_grad",      // refused: (C6)
      "batch_norm_training",  // refused: (C6)
      "unbiased_variance",    // refused: (C6)
  };
  std::set<std::string> with_empty;
  for (const OpCase& row : AcceptedOpCases()) {
    const absl::StatusOr<Graph> graph = CaseGraph(row);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto is_empty = [](const auto& one) { return one.value.type().num_elements() == 0; };
    if (std::any_of(graph->inputs().begin(), graph->inputs().end(), is_empty) ||
        std::any_of(graph->results().begin(), graph->results().end(), is_empty)) {
      with_empty.insert(row.op);
    }
  }
  for (const OpDef* op : AllOps())
    EXPECT_NE(with_empty.contains(op->name()), never_empty.contains(op->name()))
        << op->name() << ": add a row with a tensor without elements, or, if the op refuses them all, its name above";
}

TEST(Completeness, EveryConstraintHasANegativeRow) {
  std::set<std::pair<std::string, std::string>> refused, declared;
  for (const OpCase& row : AllOpCases()) {
    if (!row.refused.empty()) refused.emplace(row.op, row.refused);
  }
  for (const OpDef* op : AllOps()) {
    for (const OpDef::ConstraintDef& constraint : op->constraints()) {
      declared.emplace(op->name(), constraint.id);
      EXPECT_TRUE(refused.contains({op->name(), constraint.id}))
          << op->name() << " (" << constraint.id << "): no row violates \"" << constraint.text << "\"";
    }
  }
  for (const auto& [op, id] : refused)
    EXPECT_TRUE(declared.contains({op, id})) << op << " declares no constraint " << id;
}

}  // namespace
}  // namespace lockstep
