// Tests the distribute pass on the interpreter: a training step distributed over n ranks gives the losses and the
// states of the one-rank program, and the states are bitwise equal on all ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/printer.h"
#include "core/verifier.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/gather_factors.h"
#include "passes/simplify/simplify.h"
#include "passes/training/train_step.h"
#include "test/distributed/models.h"
#include "test/distributed/train.h"

namespace lockstep {
namespace {

using passes::OptimizerSpec;
using passes::TrainStepSpec;

// Expects that `step`, after the passes, gives the same results on 2, 3 and 4 ranks as on one, and equal states on all
// ranks.
void ExpectOneRankResults(const Graph& step, size_t steps = 5, const std::vector<passes::Pass>& passes = {}) {
  const History one = Train(step, 1, static_cast<int>(steps));
  ASSERT_EQ(one.losses.size(), steps);
  EXPECT_LT(one.losses.back(), 10);
  for (int64_t ranks : {2, 3, 4}) {
    const History many = Train(step, ranks, static_cast<int>(steps), passes);
    ASSERT_EQ(many.losses.size(), steps);
    ASSERT_EQ(many.states.size(), static_cast<size_t>(ranks));
    for (size_t s = 0; s < steps; ++s)
      EXPECT_NEAR(many.losses[s], one.losses[s], 1e-5 * std::abs(one.losses[s])) << ranks << " ranks, step " << s;
    for (const auto& [name, value] : one.states[0]) {
      for (int64_t i = 0; i < value.num_elements(); ++i) {
        EXPECT_NEAR(many.states[0].at(name).At(i), value.At(i), 2e-5)
            << ranks << " ranks, state " << name << ", element " << i;
      }
      for (const auto& states : many.states)
        EXPECT_TRUE(states.at(name) == many.states[0].at(name)) << "state " << name << " differs between ranks";
    }
  }
}

struct TheoremCase {
  std::string name;
  std::string_view model;
  OptimizerSpec optimizer;
};

class OneRankTheoremOf : public testing::TestWithParam<TheoremCase> {};

TEST_P(OneRankTheoremOf, HoldsForLossesAndStates) {
  absl::StatusOr<Graph> step = ParseGraph(GetParam().model);
  ASSERT_TRUE(step.ok()) << step.status();
  TrainStepSpec spec;
  spec.optimizer = GetParam().optimizer;
  ASSERT_TRUE(passes::MakeTrainStep(*step, spec).ok());
  ExpectOneRankResults(*step);
}

INSTANTIATE_TEST_SUITE_P(
    Models, OneRankTheoremOf,
    testing::Values(TheoremCase{"MlpSgd", kMlp, {"SGD", {{"learning_rate", 0.5}, {"momentum", 0.9}}}},
                    TheoremCase{"Recurrent", kRecurrent, {"SGD", {{"learning_rate", 0.5}, {"momentum", 0.9}}}},
                    TheoremCase{"Embedding", kEmbedding, {"SGD", {{"learning_rate", 0.5}, {"momentum", 0.9}}}},
                    TheoremCase{"ConvNetWithGlobalBatchNorm",
                                kConvNet,
                                {"SGD", {{"learning_rate", 0.1}, {"momentum", 0.9}, {"nesterov", true}}}}),
    [](const auto& info) { return info.param.name; });

size_t CountAllReduces(const Graph& graph) {
  return static_cast<size_t>(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                                           [](const Node& node) { return node.Is("all_reduce"); }));
}

// Gradients computed from gathered factors are summed in the order of one rank. Each model has some, and they are
// clipped together.
TEST(OneRankTheorem, HoldsWhereFactorsAreGathered) {
  const passes::Pass gather = passes::GatherFactors({.ignore_cost = true});
  for (const std::string_view model : {kMlp, kConvNet, kEmbedding, kRecurrent}) {
    SCOPED_TRACE(model);
    absl::StatusOr<Graph> step = ParseGraph(model);
    ASSERT_TRUE(step.ok()) << step.status();
    TrainStepSpec spec;
    spec.optimizer = {"SGD", {{"learning_rate", 0.1}, {"momentum", 0.9}}};
    spec.clipping = {"global_norm", 0.5};
    ASSERT_TRUE(passes::MakeTrainStep(*step, spec).ok());
    absl::StatusOr<Graph> placed = passes::DistributeGraph(*step, Mesh({{"data", 2}}));
    ASSERT_TRUE(placed.ok()) << placed.status();
    const size_t before = CountAllReduces(*placed);
    ASSERT_TRUE(passes::RunPasses({gather}, *placed).ok());
    EXPECT_LT(CountAllReduces(*placed), before) << placed->ToString();
    ExpectOneRankResults(*step, 5, {passes::Simplify(), gather});
  }
}

// With micro-batches, a sum is over iterations too and is reduced once, after the last.
TEST(OneRankTheorem, SumsOfMicroBatchesAreReduced) {
  const passes::Pass gather = passes::GatherFactors({.ignore_cost = true});
  absl::StatusOr<Graph> step = ParseGraph(kMlp);
  ASSERT_TRUE(step.ok()) << step.status();
  TrainStepSpec spec;
  spec.accumulate = 3;
  ASSERT_TRUE(passes::MakeTrainStep(*step, spec).ok());
  absl::StatusOr<Graph> placed = passes::DistributeGraph(*step, Mesh({{"data", 2}}));
  ASSERT_TRUE(placed.ok()) << placed.status();
  const std::string before = placed->ToString();
  ASSERT_TRUE(passes::RunPasses({gather}, *placed).ok());
  EXPECT_EQ(placed->ToString(), before);
  EXPECT_EQ(CountAllReduces(*placed), 4u) << before;
}

// The common placement rule gives the one-rank results for all optimizers of the list.
TEST(OneRankTheorem, HoldsForEveryOptimizer) {
  ASSERT_GE(passes::AllOptimizers().size(), 3u);
  for (const passes::Optimizer& optimizer : passes::AllOptimizers()) {
    SCOPED_TRACE(optimizer.name->name);
    absl::StatusOr<Graph> step = ParseGraph(kMlp);
    ASSERT_TRUE(step.ok()) << step.status();
    TrainStepSpec spec;
    spec.optimizer = {optimizer.name->name, {{"learning_rate", 0.01}}};
    // An optimizer that updates only matrices leaves the other states to another optimizer.
    if (!passes::ResolveOptimizer(spec.optimizer, 1).ok()) spec.groups = {{"b*", {"SGD", {{"learning_rate", 0.01}}}}};
    const absl::Status made = passes::MakeTrainStep(*step, spec);
    ASSERT_TRUE(made.ok()) << made;
    ExpectOneRankResults(*step);
  }
}

// As close as in f32: no part of a gradient is rounded to 16 bits before it is added to the others. Checks one step
// only: after it, weights may differ in their last bit and be rounded to different 16-bit numbers.
TEST(OneRankTheorem, HoldsInMixedPrecision) {
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    for (const std::string_view model : {kMlp, kEmbedding, kRecurrent}) {
      SCOPED_TRACE(testing::Message() << precision << " " << model);
      absl::StatusOr<Graph> step = ParseGraph(model);
      ASSERT_TRUE(step.ok()) << step.status();
      TrainStepSpec spec;
      spec.optimizer = {"SGD", {{"learning_rate", 0.5}, {"momentum", 0.9}}};
      spec.precision = precision;
      ASSERT_TRUE(passes::MakeTrainStep(*step, spec).ok());
      ExpectOneRankResults(*step, 1);
    }
  }
}

TEST(OneRankTheorem, HoldsForEveryLoss) {
  size_t count = 0;
  for (const passes::Loss& loss : passes::AllLosses()) {
    if (!loss.elements || loss.name == "ctc") continue;  // it is of sequences; pytorch_loss_test runs it on ranks
    ++count;
    SCOPED_TRACE(loss.name);
    absl::StatusOr<Graph> step = ParseGraph(kMlp);
    ASSERT_TRUE(step.ok()) << step.status();
    // If the loss takes several predictions, the others are activations of negated logits.
    passes::LossSpec spec{.name = loss.name, .predictions = {}, .inputs = {}};
    Builder b(*step);
    Value prediction = step->FindResult("logits")->value;
    for (const passes::LossArgument& argument : loss.predictions) {
      ASSERT_TRUE(step->AddResult(argument.name + " of test", prediction).ok());
      spec.predictions.push_back(argument.name + " of test");
      prediction = b.Tanh(b.Neg(prediction));
    }
    // Random targets are not probabilities, but may be logarithms of probabilities.
    for (const passes::OptionDef& option : loss.options) {
      if (option.name == "log_target") spec.options.emplace(option.name, true);
    }
    for (const passes::LossInput& input : loss.inputs) spec.inputs.push_back(input.argument.name);
    TrainStepSpec train;
    train.losses = {spec};
    train.optimizer.options["learning_rate"] = 0.5;
    const absl::Status made = passes::MakeTrainStep(*step, train);
    ASSERT_TRUE(made.ok()) << made;
    ExpectOneRankResults(*step);
  }
  EXPECT_GE(count, 10u);
}

TEST(Distribute, PutsOneAllReduceBetweenGradientAndOptimizerAndNoneOnOneRank) {
  absl::StatusOr<Graph> step = ParseGraph(kMlp);
  ASSERT_TRUE(step.ok()) << step.status();
  ASSERT_TRUE(passes::MakeTrainStep(*step, {}).ok());
  for (int64_t ranks : {1, 2}) {
    absl::StatusOr<Graph> graph = passes::DistributeGraph(*step, Mesh({{"data", ranks}}));
    ASSERT_TRUE(graph.ok()) << graph.status();
    size_t all_reduces = 0;
    for (const Node& node : graph->nodes()) all_reduces += node.Is("all_reduce");
    EXPECT_EQ(all_reduces, ranks == 1 ? 0u : 4u) << graph->ToString();  // three gradients and the loss
  }
}

TEST(Distribute, VerifierRefusesTheGraphWithoutAnyOneOfItsAllReduces) {
  for (std::string_view model : {kMlp, kConvNet}) {
    absl::StatusOr<Graph> step = ParseGraph(model);
    ASSERT_TRUE(step.ok()) << step.status();
    ASSERT_TRUE(passes::MakeTrainStep(*step, {}).ok());
    const absl::StatusOr<Graph> graph = passes::DistributeGraph(*step, Mesh({{"data", 2}}));
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_TRUE(Verify(*graph).ok());
    size_t count = 0;
    for (const Node& node : graph->nodes()) count += node.Is("all_reduce");
    ASSERT_GE(count, 4u);
    for (size_t removed = 0; removed < count; ++removed) {
      Graph damaged = graph->Clone();
      size_t i = 0;
      for (Node& node : damaged.nodes()) {
        if (!node.Is("all_reduce") || i++ != removed) continue;
        damaged.ReplaceUses(node.result(), node.operand(0));
        damaged.Erase(&node);
        break;
      }
      const absl::Status status = Verify(damaged);
      ASSERT_FALSE(status.ok()) << "without all_reduce " << removed;
      EXPECT_NE(status.message().find("all_reduce is missing"), std::string::npos) << status;
    }
  }
}

TEST(Distribute, NamesAnInputThatTheRanksCannotShare) {
  absl::StatusOr<Graph> step = ParseGraph(kMlp);
  const absl::Status status = passes::DistributeGraph(*step, Mesh({{"data", 5}})).status();
  EXPECT_EQ(status.message(),
            "dimension 0 of input %x (f32[12,5]) cannot be shared evenly by the 5 ranks of axis data: 12 is not a "
            "multiple of 5");
}

}  // namespace
}  // namespace lockstep
