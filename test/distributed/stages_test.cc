// Tests pipelines on the interpreter: stages, each with only its own states, compute what one rank computes with the
// same micro-batches. The bits are the same for any number of stages.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "core/verifier.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/localize.h"
#include "passes/optimize/cse.h"
#include "passes/optimize/dce.h"
#include "passes/simplify/simplify.h"
#include "passes/stages/cut_into_stages.h"
#include "passes/stages/turns.h"
#include "passes/training/train_step.h"
#include "passes/training/training_mode.h"
#include "test/distributed/models.h"
#include "test/distributed/train.h"

namespace lockstep {
namespace {

using passes::TrainStepSpec;

// Weights in shapes other than those of the states, as in recurrent networks: their gradients are reshaped after the
// loop over micro-batches.
constexpr std::string_view kReshaped = R"(
graph @reshaped(%x: f32[12,6] split(0), state %w: f32[1,6,6], state %u: f32[1,6,6], state %z: f32[1,6,3]) -> (logits: f32[12,3] split(0)) {
  %w2 = reshape %w {shape=[6,6]} : f32[6,6]
  %u2 = reshape %u {shape=[6,6]} : f32[6,6]
  %z2 = reshape %z {shape=[6,3]} : f32[6,3]
  %h1 = matmul %x, %w2 : f32[12,6]
  %a1 = tanh %h1 : f32[12,6]
  %h2 = matmul %a1, %u2 : f32[12,6]
  %a2 = tanh %h2 : f32[12,6]
  %y  = matmul %a2, %z2 : f32[12,3]
  return %y
}
)";

const passes::OptimizerSpec kMomentum = {"SGD", {{"learning_rate", 0.5}, {"momentum", 0.9}}};

TrainStepSpec SpecWith(passes::OptimizerSpec optimizer) {
  TrainStepSpec spec;
  spec.optimizer = std::move(optimizer);
  return spec;
}

Graph StepOf(std::string_view model, TrainStepSpec spec, int64_t micro_batches) {
  Graph step = ParseGraph(model).value();
  EXPECT_TRUE(passes::RunPasses({passes::TrainingMode()}, step).ok());
  spec.accumulate = micro_batches;
  const absl::Status made = passes::MakeTrainStep(step, spec);
  EXPECT_TRUE(made.ok()) << made;
  return step;
}

// The value that a rank has in place of one that is on another stage: NaN, so that its use would show.
Tensor Nothing(const TensorType& type) {
  return IsFloat(type.dtype) ? Tensor::Full(type, std::numeric_limits<double>::quiet_NaN()) : Tensor(type);
}

bool IsThere(const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  const Placement placement = PlacementAlong(placements, kStageAxis);
  return !placement.is_at() || placement.is_at(mesh.Coordinate(rank, kStageAxis));
}

absl::StatusOr<Graph> Staged(const Graph& step, int64_t data_ranks, const passes::StageOptions& options) {
  ASSIGN_OR_RETURN(Graph placed, passes::DistributeGraph(step, Mesh({{"data", data_ranks}})));
  RETURN_IF_ERROR(passes::RunPasses({passes::Dce()}, placed));
  ASSIGN_OR_RETURN(Graph staged, passes::CutGraphIntoStages(placed, options));
  RETURN_IF_ERROR(Verify(staged));
  RETURN_IF_ERROR(passes::RunPasses({passes::Localize()}, staged));
  return staged;
}

// Like Train, with the same data, over data_ranks * stages ranks. The states are those of their stages.
History TrainInStages(const Graph& step, int64_t data_ranks, int64_t stages, int steps) {
  const absl::StatusOr<Graph> staged = Staged(step, data_ranks, {.stages = stages});
  EXPECT_TRUE(staged.ok()) << staged.status() << "\n" << step.ToString();
  if (!staged.ok()) return {};
  const Mesh& mesh = staged->mesh();
  EXPECT_EQ(mesh.num_ranks(), data_ranks * stages);
  std::mt19937_64 random(7);
  const auto values = [&](const TensorType& type) {
    return IsFloat(type.dtype) ? RandomTensor(type, random, -0.5, 0.5) : RandomTensor(type, random, 0, 2);
  };
  History run;
  run.states.resize(1);
  for (const Input& input : step.inputs()) {
    if (!input.is_state) continue;
    const bool starts_at_zero = input.name().find('/') != std::string::npos;
    run.states[0][input.name()] = starts_at_zero ? Tensor(input.value.type()) : values(input.value.type());
  }
  for (int s = 0; s < steps; ++s) {
    std::vector<std::vector<Tensor>> inputs(static_cast<size_t>(mesh.num_ranks()));
    for (size_t i = 0; i < step.inputs().size(); ++i) {
      const Input& input = step.inputs()[i];
      const Tensor batch = input.is_data() ? values(input.value.type()) : Tensor();
      for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
        std::vector<Tensor>& own = inputs[static_cast<size_t>(rank)];
        const PlacementMap& placements = staged->inputs()[i].placements();
        if (input.setting) own.push_back(Tensor::Scalar(DType::kF64, input.setting->value));
        else if (input.is_data()) own.push_back(LocalPart(batch, placements, mesh, rank));
        else if (IsThere(placements, mesh, rank)) own.push_back(run.states[0].at(input.name()));
        else own.push_back(Nothing(input.value.type()));
      }
    }
    const auto results = Interpret(*staged, inputs);
    EXPECT_TRUE(results.ok()) << results.status();
    if (!results.ok()) return run;
    for (size_t i = 0; i < staged->results().size(); ++i) {
      const Result& result = staged->results()[i];
      for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
        const Tensor& value = (*results)[static_cast<size_t>(rank)][i];
        if (result.is_state && IsThere(result.placements, mesh, rank)) run.states[0][result.name] = value;
        if (result.name != "loss") continue;
        if (rank == 0) run.losses.push_back(value.At(0));
        EXPECT_EQ(value.At(0), run.losses.back()) << "rank " << rank;
      }
    }
  }
  return run;
}

void ExpectNear(const History& found, const History& expected, const std::string& what) {
  ASSERT_EQ(found.losses.size(), expected.losses.size()) << what;
  for (size_t s = 0; s < expected.losses.size(); ++s)
    EXPECT_NEAR(found.losses[s], expected.losses[s], 2e-5 * std::abs(expected.losses[s])) << what << ", step " << s;
  ASSERT_EQ(found.states[0].size(), expected.states[0].size()) << what;
  for (const auto& [name, value] : expected.states[0]) {
    const Tensor& state = found.states[0].at(name);
    for (int64_t i = 0; i < value.num_elements(); ++i)
      EXPECT_NEAR(state.At(i), value.At(i), 2e-5) << what << ", state " << name << ", element " << i;
  }
}

void ExpectSameBits(const History& found, const History& expected, const std::string& what) {
  EXPECT_EQ(found.losses, expected.losses) << what;
  for (const auto& [name, value] : expected.states[0]) EXPECT_TRUE(found.states[0].at(name) == value) << what << name;
}

// Returns the number of comparisons, so that a test can expect that none was left out.
int ExpectAsOnOneRank(std::string_view model, const TrainStepSpec& spec, int64_t max_stages = 4,
                      int64_t max_data_ranks = 2) {
  int compared = 0;
  for (int64_t micro_batches : {1, 2, 3, 6}) {
    const Graph step = StepOf(model, spec, micro_batches);
    const History expected = Train(step, 1, 3);
    EXPECT_TRUE(expected.losses.size() == 3 && std::isfinite(expected.losses.back()));
    for (int64_t data_ranks : {1, 2}) {
      if (data_ranks > max_data_ranks || 12 % (data_ranks * micro_batches) != 0) continue;
      History of_one_stage;
      for (int64_t stages = 1; stages <= max_stages; ++stages, ++compared) {
        const std::string what = std::to_string(stages) + " stages, " + std::to_string(micro_batches) +
                                 " micro-batches, " + std::to_string(data_ranks) + " data ranks: ";
        const History found = TrainInStages(step, data_ranks, stages, 3);
        if (found.losses.size() != 3) continue;
        ExpectNear(found, expected, what);
        if (stages == 1) of_one_stage = found;
        else ExpectSameBits(found, of_one_stage, what);
      }
    }
  }
  return compared;
}

TEST(Stages, ComputeWhatOneRankDoes) {
  EXPECT_EQ(ExpectAsOnOneRank(kMlp, SpecWith(kMomentum)), 32);
  EXPECT_EQ(ExpectAsOnOneRank(kDeep, SpecWith(kMomentum)), 32);
  EXPECT_EQ(ExpectAsOnOneRank(kReshaped, SpecWith(kMomentum), 3), 24);
  EXPECT_EQ(ExpectAsOnOneRank(kConvNet, SpecWith(kMomentum), 4, 1), 16);  // its statistics are per micro-batch
  EXPECT_EQ(ExpectAsOnOneRank(kEmbedding, SpecWith(kMomentum), 3), 24);
  EXPECT_EQ(ExpectAsOnOneRank(kRecurrent, SpecWith(kMomentum), 3), 24);
  EXPECT_EQ(ExpectAsOnOneRank(kDropouts, SpecWith(kMomentum)), 32);
}

TEST(Stages, DoSoWithOtherOptimizers) {
  for (const char* name : {"SGD", "Adam", "AdamW", "RMSprop"}) {
    SCOPED_TRACE(name);
    ExpectAsOnOneRank(kDeep, SpecWith({name, {{"learning_rate", 0.01}}}));
  }
}

// Norms of all stages' gradients, and averages of their states.
TEST(Stages, ClipAndAverage) {
  for (const char* by : {"value", "norm", "global_norm"}) {
    SCOPED_TRACE(by);
    TrainStepSpec spec = SpecWith(kMomentum);
    spec.clipping = {by, 0.01};
    spec.average = true;
    ExpectAsOnOneRank(kDeep, spec);
  }
}

// Losses are divided by the count of all micro-batches. In f16 a separate loop counts first.
TEST(Stages, DivideByTheCountOfTheBatch) {
  TrainStepSpec spec = SpecWith(kMomentum);
  spec.losses[0].options = {{"ignore_index", int64_t{0}}};
  ExpectAsOnOneRank(kDeep, spec);
}

// Each stage computes in the order of 1F1B.
TEST(Stages, ComputeInTheOrderOfTurns) {
  constexpr passes::StageOptions kByOperations = {.stages = 3, .operations_per_byte = 0};
  const absl::StatusOr<Graph> staged = Staged(StepOf(kDeep, SpecWith(kMomentum), 6), 1, kByOperations);
  ASSERT_TRUE(staged.ok()) << staged.status();
  std::map<int64_t, std::string> orders;
  for (const Node& node : staged->nodes()) {
    const Placement placement = PlacementAlong(node.placements(), kStageAxis);
    if (!node.Is("matmul")) continue;
    ASSERT_TRUE(placement.is_at()) << node.Describe();
    const bool is_backward = node.source().starts_with("gradient of");
    std::string& order = orders[placement.rank()];
    if (order.empty() || order.back() != (is_backward ? 'B' : 'F')) order += is_backward ? 'B' : 'F';
  }
  EXPECT_EQ(orders[0], "FBFBFBFB") << staged->ToString();  // F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5
  EXPECT_EQ(orders[1], "FBFBFBFBFB");                      // F0 F1 B0 F2 … B3 F5 B4 B5
  EXPECT_EQ(orders[2], "FBFBFBFBFBFB");
}

// Runs each rank alone with its own part of the list: a sender does not wait, and a rank that needs a value waits until
// it was sent.
TEST(Stages, DoNotWaitForEver) {
  for (int64_t stages : {2, 3, 4}) {
    for (int64_t micro_batches : {1, 2, 3, 6}) {
      const absl::StatusOr<Graph> staged =
          Staged(StepOf(kDeep, SpecWith(kMomentum), micro_batches), 1, {.stages = stages});
      ASSERT_TRUE(staged.ok()) << staged.status();
      std::vector<std::vector<const Node*>> lists(static_cast<size_t>(stages));
      int64_t transfers = 0;
      for (const Node& node : staged->nodes()) {
        const Placement is = PlacementAlong(node.placements(), kStageAxis);
        const bool moves = node.Is("collective_permute");
        transfers += moves;
        for (int64_t stage = 0; stage < stages; ++stage) {
          const bool gives = moves && node.attr<std::vector<int64_t>>("sources")[0] == stage;
          if (!is.is_at() || is.is_at(stage) || gives) lists[static_cast<size_t>(stage)].push_back(&node);
        }
      }
      EXPECT_GE(transfers, (stages - 1) * micro_batches);
      std::set<const Node*> given;  // transfers already sent
      std::vector<size_t> next(lists.size());
      for (bool any = true; std::exchange(any, false);) {
        for (size_t stage = lists.size(); stage-- > 0;) {
          for (; next[stage] < lists[stage].size(); ++next[stage], any = true) {
            const Node& node = *lists[stage][next[stage]];
            const auto is_missing = [&](Value operand) {
              const bool gets = operand.node->Is("collective_permute") || operand.node->Is("collective_broadcast");
              return gets && !given.contains(operand.node);
            };
            const bool moves = node.Is("collective_permute") || node.Is("collective_broadcast");
            const bool gives = moves && node.operand(0).placement(kStageAxis).is_at(static_cast<int64_t>(stage));
            if (moves && !gives) continue;  // the receiver waits where it uses the value
            if (std::any_of(node.operands().begin(), node.operands().end(), is_missing)) break;
            if (gives) given.insert(&node);
          }
        }
      }
      for (size_t stage = 0; stage < lists.size(); ++stage) EXPECT_EQ(next[stage], lists[stage].size()) << stage;
    }
  }
}

TEST(Stages, RefuseWhatTheyCannotCut) {
  const Graph step = StepOf(kMlp, SpecWith(kMomentum), 2);
  const absl::Status too_many = passes::CutGraphIntoStages(step, {.stages = 40}).status();
  EXPECT_NE(too_many.message().find("is to be cut into 40 stages, and has "), std::string::npos) << too_many;
  const absl::StatusOr<Graph> staged = passes::CutGraphIntoStages(step, {.stages = 2});
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_FALSE(passes::CutGraphIntoStages(*staged, {.stages = 2}).ok());
}

}  // namespace
}  // namespace lockstep
