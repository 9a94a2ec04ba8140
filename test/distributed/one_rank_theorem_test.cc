// The theorem of the distribute pass, checked on the interpreter: a training step distributed over n ranks gives the
// losses and the states of the one-rank program, and the states are bitwise equal on all ranks.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "core/interpreter.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "core/verifier.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/localize.h"
#include "passes/distribute/merge_all_reduces.h"
#include "passes/distribute/overlap_collectives.h"
#include "passes/training/train_step.h"

namespace lockstep {
namespace {

using passes::OptimizerSpec;
using passes::TrainStepSpec;

constexpr std::string_view kMlp = R"(
graph @mlp(%x: f32[12,5] split(0), state %w1: f32[5,7], state %b1: f32[7], state %w2: f32[7,3]) -> (logits: f32[12,3] split(0)) {
  %h  = matmul %x, %w1 : f32[12,7]
  %bb = broadcast %b1 {shape=[12,7], dims=[1]} : f32[12,7]
  %hb = add %h, %bb : f32[12,7]
  %a  = tanh %hb : f32[12,7]
  %z  = matmul %a, %w2 : f32[12,3]
  return %z
}
)";

constexpr std::string_view kConvNet = R"(
graph @convnet(%x: f32[12,2,6,6] split(0), state %k: f32[4,2,3,3], state %scale: f32[4], state %bias: f32[4], state %w: f32[16,3]) -> (logits: f32[12,3] split(0)) {
  %c = convolution %x, %k {stride=[1,1], padding_low=[0,0], padding_high=[0,0], dilation=[1,1]} : f32[12,4,4,4]
  %n, %mean, %var = batch_norm_training %c, %scale, %bias {epsilon=1e-5} : f32[12,4,4,4], f32[4], f32[4]
  %r = relu %n : f32[12,4,4,4]
  %p = max_pool %r {window=[2,2], stride=[2,2], padding_low=[0,0], padding_high=[0,0], dilation=[1,1]} : f32[12,4,2,2]
  %f = reshape %p {shape=[12,16]} : f32[12,16]
  %z = matmul %f, %w : f32[12,3]
  return %z
}
)";

constexpr std::string_view kEmbedding = R"(
graph @tokens(%x: i64[12,4] split(0), state %table: f32[5,6], state %w: f32[24,3]) -> (logits: f32[12,3] split(0)) {
  %e = gather %table, %x {dim=0} : f32[12,4,6]
  %f = reshape %e {shape=[12,24]} : f32[12,24]
  %z = matmul %f, %w : f32[12,3]
  return %z
}
)";

// The batch is split in the loop, where ranks do not meet: the gradients of its weights are sums over the loop and then
// over the ranks.
constexpr std::string_view kRecurrent = R"(
graph @recurrent(%x: f32[12,4,5] split(0), state %w: f32[5,6], state %r: f32[6,6], state %b: f32[6], state %v: f32[6,3]) -> (logits: f32[12,3] split(0)) {
  %xs = transpose %x {permutation=[1,0,2]} : f32[4,12,5]
  %0 = constant {value=dense<f32[]: 0.0>} : f32[]
  %h = broadcast %0 {dims=[], shape=[12,6]} : f32[12,6]
  %last = scan %h, %xs, %w, %r, %b {carried=1, length=4, scanned=1, body=
    graph @step(%h: f32[12,6], %x: f32[12,5], %w: f32[5,6], %r: f32[6,6], %b: f32[6]) -> (h: f32[12,6]) {
      %of_x = matmul %x, %w : f32[12,6]
      %of_h = matmul %h, %r : f32[12,6]
      %sum = add %of_x, %of_h : f32[12,6]
      %bias = broadcast %b {dims=[1], shape=[12,6]} : f32[12,6]
      %biased = add %sum, %bias : f32[12,6]
      %next = tanh %biased : f32[12,6]
      return %next
    }} : f32[12,6]
  %z = matmul %last, %v : f32[12,3]
  return %z
}
)";

// Labels from 0 to 2, small floats.
Tensor RandomValues(const TensorType& type, std::mt19937_64& random) {
  return IsFloat(type.dtype) ? RandomTensor(type, random, -0.5, 0.5) : RandomTensor(type, random, 0, 2);
}

// Slice `rank` of `of` equal slices of dimension 0.
Tensor RankSlice(const Tensor& whole, int64_t rank, int64_t of) {
  Tensor slice(TensorType{whole.dtype(), whole.shape().WithDim(0, whole.shape()[0] / of)});
  std::memcpy(slice.mutable_bytes(), whole.bytes() + static_cast<size_t>(rank) * slice.num_bytes(), slice.num_bytes());
  return slice;
}

// Trains `steps` steps over `ranks` ranks; returns the losses, and the states of each rank in the end.
struct History {
  std::vector<double> losses;
  std::vector<std::map<std::string, Tensor>> states;
};

History Train(const Graph& step, int64_t ranks, int steps) {
  absl::StatusOr<Graph> graph = passes::DistributeGraph(step, Mesh({{"data", ranks}}));
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  const absl::Status merged = passes::RunPasses({passes::MergeAllReduces({.max_bytes = 200, .first_bytes = 100}),
                                                 passes::Localize(), passes::OverlapCollectives()},
                                                *graph);
  EXPECT_TRUE(merged.ok()) << merged << "\n" << graph->ToString();
  EXPECT_EQ(graph->mesh().num_ranks(), ranks);
  std::mt19937_64 random(7);
  History run;
  run.states.resize(static_cast<size_t>(ranks));
  for (const Input& input : step.inputs()) {
    if (!input.is_state) continue;
    const bool starts_at_zero = input.name().find('/') != std::string::npos;
    const Tensor value = starts_at_zero ? Tensor(input.value.type()) : RandomValues(input.value.type(), random);
    for (auto& states : run.states) states[input.name()] = value;
  }
  for (int s = 0; s < steps; ++s) {
    std::vector<std::vector<Tensor>> inputs(static_cast<size_t>(ranks));
    for (const Input& input : step.inputs()) {
      const bool is_batch = !input.is_state && !input.setting;
      const Tensor batch = is_batch ? RandomValues(input.value.type(), random) : Tensor();
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto r = static_cast<size_t>(rank);
        if (is_batch) inputs[r].push_back(RankSlice(batch, rank, ranks));
        else if (input.is_state) inputs[r].push_back(run.states[r][input.name()]);
        else inputs[r].push_back(Tensor::Scalar(DType::kF64, input.setting->value));
      }
    }
    const auto results = Interpret(*graph, inputs);
    EXPECT_TRUE(results.ok()) << results.status();
    if (!results.ok()) return run;
    for (size_t i = 0; i < graph->results().size(); ++i) {
      const Result& result = graph->results()[i];
      for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) {
        if (result.is_state) run.states[r][result.name] = (*results)[r][i];
      }
      if (result.name == "loss") run.losses.push_back((*results)[0][i].At(0));
    }
  }
  return run;
}

// Expects of `step` on 2, 3 and 4 ranks what it does on one, and equal states on all ranks.
void ExpectOneRankResults(const Graph& step) {
  const History one = Train(step, 1, 5);
  ASSERT_EQ(one.losses.size(), 5u);
  EXPECT_LT(one.losses.back(), 10);
  for (int64_t ranks : {2, 3, 4}) {
    const History many = Train(step, ranks, 5);
    ASSERT_EQ(many.losses.size(), 5u);
    ASSERT_EQ(many.states.size(), static_cast<size_t>(ranks));
    for (size_t s = 0; s < 5; ++s)
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

// By the common rule of placement, whatever is in the lists.
TEST(OneRankTheorem, HoldsForEveryOptimizer) {
  ASSERT_GE(passes::AllOptimizers().size(), 3u);
  for (const passes::Optimizer& optimizer : passes::AllOptimizers()) {
    SCOPED_TRACE(optimizer.name->name);
    absl::StatusOr<Graph> step = ParseGraph(kMlp);
    ASSERT_TRUE(step.ok()) << step.status();
    TrainStepSpec spec;
    spec.optimizer = {optimizer.name->name, {{"learning_rate", 0.01}}};
    const absl::Status made = passes::MakeTrainStep(*step, spec);
    ASSERT_TRUE(made.ok()) << made;
    ExpectOneRankResults(*step);
  }
}

TEST(OneRankTheorem, HoldsForEveryLoss) {
  size_t count = 0;
  for (const passes::Loss& loss : passes::AllLosses()) {
    if (!loss.elements || loss.name == "ctc") continue;  // which is of sequences; pytorch_loss_test has it on ranks
    ++count;
    SCOPED_TRACE(loss.name);
    absl::StatusOr<Graph> step = ParseGraph(kMlp);
    ASSERT_TRUE(step.ok()) << step.status();
    // Of several results the others are those of other layers' activations, or their negatives.
    passes::LossSpec spec{.name = loss.name, .predictions = {}, .inputs = {}};
    Builder b(*step);
    Value prediction = step->FindResult("logits")->value;
    for (const passes::LossArgument& argument : loss.predictions) {
      ASSERT_TRUE(step->AddResult(argument.name + " of test", prediction).ok());
      spec.predictions.push_back(argument.name + " of test");
      prediction = b.Tanh(b.Neg(prediction));
    }
    // Random targets are no probabilities, but may be logarithms of some.
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
