// Tests gradient accumulation on the interpreter: a step of k micro-batches gives the losses and the states of the step
// of the whole batch, on any number of ranks.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "core/interpreter.h"
#include "core/ops/scan.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "core/verifier.h"
#include "passes/distribute/distribute.h"
#include "passes/training/train_step.h"
#include "passes/training/training_mode.h"
#include "test/distributed/models.h"
#include "test/distributed/train.h"

namespace lockstep {
namespace {

using passes::LossSpec;
using passes::TrainStepSpec;

constexpr std::string_view kAccumulatedDropouts = R"(
graph @dropouts(%x: f32[12,5] split(0), state %w1: f32[5,16], state %w2: f32[16,3]) -> (logits: f32[12,3] split(0)) {
  %p = constant {value=dense<f32[]: 0.3>} : f32[]
  %h  = matmul %x, %w1 : f32[12,16]
  %a  = tanh %h : f32[12,16]
  %d, %dm = dropout %a, %p : f32[12,16], bool[12,16]
  %e, %em = dropout %d, %p : f32[12,16], bool[12,16]
  %z  = matmul %e, %w2 : f32[12,3]
  return %z
}
)";

// The words of all sentences are rows of the logits, and each has a label. The batch can be cut at multiples of four
// rows.
constexpr std::string_view kWords = R"(
graph @words(%x: i64[12,4] split(0), state %table: f32[5,6], state %q: f32[6,6], state %k: f32[6,6], state %v: f32[6,3]) -> (logits: f32[48,3] split(0)) {
  %e = gather %table, %x {dim=0} : f32[12,4,6]
  %eq = matmul %e, %q : f32[12,4,6]
  %ek = matmul %e, %k : f32[12,4,6]
  %s = matmul %eq, %ek {transpose_b=true} : f32[12,4,4]
  %mask = constant {value=dense<f32[4,4]: 0.0, -9.0, -9.0, -9.0, 0.0, 0.0, -9.0, -9.0, 0.0, 0.0, 0.0, -9.0, 0.0, 0.0, 0.0, 0.0>} : f32[4,4]
  %masks = broadcast %mask {dims=[1,2], shape=[12,4,4]} : f32[12,4,4]
  %masked = add %s, %masks : f32[12,4,4]
  %p = softmax %masked {dim=2} : f32[12,4,4]
  %pe = matmul %p, %e : f32[12,4,6]
  %r = reshape %pe {shape=[48,6]} : f32[48,6]
  %z = matmul %r, %v : f32[48,3]
  return %z
}
)";

// The model treats two consecutive samples as one row. The batch can be cut at multiples of two samples.
constexpr std::string_view kPairs = R"(
graph @pairs(%x: f32[12,5] split(0), state %w: f32[5,4], state %v: f32[8,6]) -> (logits: f32[12,3] split(0)) {
  %h = matmul %x, %w : f32[12,4]
  %p = reshape %h {shape=[6,8]} : f32[6,8]
  %z = matmul %p, %v : f32[6,6]
  %y = reshape %z {shape=[12,3]} : f32[12,3]
  return %y
}
)";

// Each sample is compared with all others: every micro-batch needs the whole batch.
constexpr std::string_view kContrast = R"(
graph @contrast(%x: f32[12,5] split(0), state %w: f32[5,4]) -> (logits: f32[12,12] split(0)) {
  %h = matmul %x, %w : f32[12,4]
  %e = tanh %h : f32[12,4]
  %z = matmul %e, %e {transpose_b=true} : f32[12,12]
  return %z
}
)";

// The batch is the second dimension.
constexpr std::string_view kColumns = R"(
graph @columns(%x: f32[5,12] split(1), state %w: f32[5,3]) -> (logits: f32[12,3] split(0)) {
  %z = matmul %x, %w {transpose_a=true} : f32[12,3]
  return %z
}
)";

// A carried value beside the batch counts the iterations and is equal in all micro-batches.
constexpr std::string_view kCounting = R"(
graph @counting(%x: f32[12,5] split(0), state %w: f32[5,5], state %v: f32[5,3]) -> (logits: f32[12,3] split(0), count: f32[], twice: f32[], rows: f32[4,3]) {
  %0 = constant {value=dense<f32[]: 0.0>} : f32[]
  %count, %last, %counts = scan %0, %x, %w {carried=2, length=4, body=
    graph @step(%n: f32[], %h: f32[12,5], %w: f32[5,5]) -> (n: f32[], h: f32[12,5], ns: f32[]) {
      %1 = constant {value=dense<f32[]: 1.0>} : f32[]
      %n.next = add %n, %1 : f32[]
      %p = matmul %h, %w : f32[12,5]
      %ns = broadcast %n.next {dims=[], shape=[12,5]} : f32[12,5]
      %q = div %p, %ns : f32[12,5]
      %h.next = tanh %q : f32[12,5]
      return %n.next, %h.next, %n.next
    }} : f32[], f32[12,5], f32[4]
  %z = matmul %last, %v : f32[12,3]
  %twice = add %count, %count : f32[]
  %rows = broadcast %counts {dims=[0], shape=[4,3]} : f32[4,3]
  return %z, %count, %twice, %rows
}
)";

Graph AccumulatedStep(std::string_view model, TrainStepSpec spec, int64_t accumulate) {
  Graph step = ParseGraph(model).value();
  const absl::Status in_training = passes::RunPasses({passes::TrainingMode()}, step);
  EXPECT_TRUE(in_training.ok()) << in_training;
  spec.accumulate = accumulate;
  const absl::Status made = passes::MakeTrainStep(step, spec);
  EXPECT_TRUE(made.ok()) << made;
  const absl::Status valid = Verify(step);
  EXPECT_TRUE(valid.ok()) << valid;
  return step;
}

std::vector<const Node*> LoopsOf(const Graph& graph) {
  std::vector<const Node*> loops;
  for (const Node& node : graph.nodes()) {
    if (node.Is("scan") && node.attr<bool>("one_at_a_time")) loops.push_back(&node);
  }
  return loops;
}

void ExpectEqual(const History& found, const History& expected, const std::string& what) {
  ASSERT_EQ(found.losses.size(), expected.losses.size()) << what;
  for (size_t s = 0; s < expected.losses.size(); ++s)
    EXPECT_NEAR(found.losses[s], expected.losses[s], 2e-5 * std::abs(expected.losses[s])) << what << ", step " << s;
  ASSERT_EQ(found.states[0].size(), expected.states[0].size()) << what;
  for (const auto& [name, value] : expected.states[0]) {
    const Tensor& state = found.states[0].at(name);
    for (int64_t i = 0; i < value.num_elements(); ++i)
      EXPECT_NEAR(state.At(i), value.At(i), 2e-5) << what << ", state " << name << ", element " << i;
    for (const auto& states : found.states)
      EXPECT_TRUE(states.at(name) == state) << what << ": state " << name << " differs between ranks";
  }
}

// Of 12 samples, each of 2 micro-batches has 6 for ranks to share, each of 3 has 4, each of 6 has 2.
void ExpectAsOfTheWholeBatch(std::string_view model, const TrainStepSpec& spec, size_t num_loops = 1,
                             int64_t max_ranks = 3) {
  const History whole = Train(AccumulatedStep(model, spec, 1), 1, 4);
  ASSERT_EQ(whole.losses.size(), 4u);
  ASSERT_TRUE(std::isfinite(whole.losses.back()));
  EXPECT_NE(whole.losses.front(), whole.losses.back());
  for (int64_t accumulate : {2, 3, 6, 12}) {
    const Graph step = AccumulatedStep(model, spec, accumulate);
    ASSERT_EQ(LoopsOf(step).size(), num_loops) << step.ToString();
    for (const Node* loop : LoopsOf(step)) EXPECT_EQ(ScanForm(*loop).length, accumulate);
    for (int64_t ranks : {1, 2, 3}) {
      if (ranks > max_ranks || 12 % (ranks * accumulate) != 0) continue;
      ExpectEqual(Train(step, ranks, 4), whole,
                  std::to_string(accumulate) + " micro-batches on " + std::to_string(ranks) + " ranks");
    }
  }
}

TrainStepSpec AccumulatedSpec(passes::OptimizerSpec optimizer) {
  TrainStepSpec spec;
  spec.optimizer = std::move(optimizer);
  return spec;
}

const passes::OptimizerSpec kSgd = {"SGD", {{"learning_rate", 0.5}, {"momentum", 0.9}}};

TEST(Accumulate, IsTheStepOfTheWholeBatch) {
  for (std::string_view model : {kMlp, kEmbedding, kRecurrent, kWords, kColumns, kAccumulatedDropouts, kCounting}) {
    SCOPED_TRACE(model.substr(0, 20));
    ExpectAsOfTheWholeBatch(model, AccumulatedSpec(kSgd));
  }
}

TEST(Accumulate, KeepsTogetherWhatIsARowWithin) {
  const History whole = Train(AccumulatedStep(kPairs, AccumulatedSpec(kSgd), 1), 1, 4);
  for (const auto& [accumulate, ranks] : {std::pair(2, 1), {2, 3}, {3, 1}, {3, 2}, {6, 1}}) {
    ExpectEqual(Train(AccumulatedStep(kPairs, AccumulatedSpec(kSgd), accumulate), ranks, 4), whole,
                std::to_string(accumulate) + " micro-batches on " + std::to_string(ranks) + " ranks");
  }
}

TEST(Accumulate, IsThatWithEveryOptimizer) {
  for (const passes::Optimizer& optimizer : passes::AllOptimizers()) {
    SCOPED_TRACE(optimizer.name->name);
    TrainStepSpec spec = AccumulatedSpec({optimizer.name->name, {{"learning_rate", 0.01}}});
    // An optimizer that updates only matrices leaves the other states to another optimizer.
    if (!passes::ResolveOptimizer(spec.optimizer, 1).ok()) spec.groups = {{"b*", kSgd}};
    ExpectAsOfTheWholeBatch(kMlp, spec);
  }
}

TEST(Accumulate, ClipsAndAveragesTheSum) {
  for (const char* by : {"value", "norm", "global_norm"}) {
    SCOPED_TRACE(by);
    TrainStepSpec spec = AccumulatedSpec(kSgd);
    spec.clipping = {by, 0.01};
    spec.average = true;
    ExpectAsOfTheWholeBatch(kMlp, spec);
  }
}

// The number of labels that count is known only after all were read, so a loop over the labels alone comes first.
TEST(Accumulate, DividesByTheCountOfTheWholeBatch) {
  TrainStepSpec spec = AccumulatedSpec(kSgd);
  spec.losses[0].options = {{"ignore_index", int64_t{0}}};
  ExpectAsOfTheWholeBatch(kMlp, spec);
  ExpectAsOfTheWholeBatch(kWords, spec);
  const Graph step = AccumulatedStep(kMlp, spec, 3);
  EXPECT_EQ(LoopsOf(step).size(), 1u) << "the counts are summed in the loop of the gradients\n" << step.ToString();
}

// In f16 the gradients of a sum would be too large, so a separate loop counts first.
TEST(Accumulate, CountsFirstInHalf) {
  TrainStepSpec spec = AccumulatedSpec(kSgd);
  spec.losses[0].options = {{"ignore_index", int64_t{0}}};
  spec.precision = DType::kF16;
  const Graph step = AccumulatedStep(kMlp, spec, 3);
  ASSERT_EQ(LoopsOf(step).size(), 2u) << step.ToString();
  const ScanForm counts(*LoopsOf(step)[0]);
  ASSERT_EQ(counts.num_inputs(), 1u) << step.ToString();
  EXPECT_EQ(counts.body->inputs()[0].name(), "target");
}

// Each loss is divided by its own count.
TEST(Accumulate, AddsUpLossesThatCountDifferently) {
  TrainStepSpec spec = AccumulatedSpec(kSgd);
  LossSpec weighted;
  weighted.options = {{"sample_weight", std::string("weight")}, {"ignore_index", int64_t{1}}};
  weighted.factor = 0.5;
  spec.losses = {LossSpec(), weighted};
  ExpectAsOfTheWholeBatch(kMlp, spec, 2);
}

TEST(Accumulate, ComputesAgainWhatNeedsTheWholeBatch) {
  // Four loops: the embeddings of all samples; the comparison of each sample with them; the gradients of the
  // embeddings, to which each micro-batch adds; and the gradients of the weights.
  ExpectAsOfTheWholeBatch(kContrast, AccumulatedSpec(kSgd), 4, /*max_ranks=*/1);
  const absl::Status on_ranks =
      passes::DistributeGraph(AccumulatedStep(kContrast, {}, 2), Mesh({{"data", 2}})).status();
  EXPECT_NE(on_ranks.message().find("would have to communicate within the loop over micro-batches"), std::string::npos)
      << on_ranks;
}

// Inputs of any step: labels from 0 to 2, and floats.
std::vector<Tensor> InputsOf(const Graph& step, uint64_t seed, double low, double high) {
  std::mt19937_64 random(seed);
  std::vector<Tensor> inputs;
  for (const Input& input : step.inputs()) {
    const TensorType& type = input.value.type();
    inputs.push_back(input.setting         ? Tensor::Scalar(DType::kF64, input.setting->value)
                     : IsFloat(type.dtype) ? RandomTensor(type, random, low, high)
                                           : RandomTensor(type, random, 0, 2));
  }
  return inputs;
}

// Results with one row per sample keep the order of the samples; results over the batch cover the whole batch; other
// results are unchanged.
TEST(Accumulate, KeepsResults) {
  constexpr std::string_view kResults = R"(
graph @results(%x: f32[12,5] split(0), state %w: f32[5,3]) -> (logits: f32[12,3] split(0), columns: f32[3,12] split(1), largest: f32[], mean: f32[3], of_w: f32[5,3]) {
  %z = matmul %x, %w : f32[12,3]
  %columns = transpose %z {permutation=[1,0]} : f32[3,12]
  %largest = reduce_max %z {dims=[0,1]} : f32[]
  %mean = reduce_sum %z {dims=[0]} : f32[3]
  %of_w = exp %w : f32[5,3]
  return %z, %columns, %largest, %mean, %of_w
}
)";
  TrainStepSpec spec = AccumulatedSpec(kSgd);
  spec.keep_results = true;
  for (std::string_view model : {kResults, kCounting}) {
    const Graph whole = AccumulatedStep(model, spec, 1), step = AccumulatedStep(model, spec, 4);
    EXPECT_EQ(LoopsOf(step).size(), 1u) << step.ToString();
    const std::vector<Tensor> inputs = InputsOf(whole, 3, -1, 1);
    const std::vector<Tensor> expected = InterpretOneRank(whole, inputs).value();
    const std::vector<Tensor> found = InterpretOneRank(step, inputs).value();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(step.results()[i].name, whole.results()[i].name);
      EXPECT_EQ(step.results()[i].placements, whole.results()[i].placements);
      ASSERT_EQ(found[i].type(), expected[i].type());
      for (int64_t at = 0; at < found[i].num_elements(); ++at)
        EXPECT_NEAR(found[i].At(at), expected[i].At(at), 1e-5) << step.results()[i].name;
    }
    EXPECT_EQ(found[0], expected[0]) << "the logits of a row depend on that row alone";
  }
}

size_t Collectives(const Graph& graph) {
  size_t count = 0;
  for (const Node& node : graph.nodes()) {
    count += node.op().has_trait(kCollective);
    if (node.Is("scan")) count += Collectives(*ScanForm(node).body);
  }
  return count;
}

// The number of collectives is that of the step of the whole batch: a reduction of each gradient, of the loss and of
// the counts.
TEST(Accumulate, CommunicatesOnceAStep) {
  TrainStepSpec counting;
  counting.losses[0].options = {{"ignore_index", int64_t{0}}};
  for (std::string_view model : {kMlp, kEmbedding, kRecurrent, kWords}) {
    for (const TrainStepSpec& spec : {TrainStepSpec(), counting}) {
      const Mesh mesh({{"data", 2}});
      const auto whole = passes::DistributeGraph(AccumulatedStep(model, spec, 1), mesh);
      const auto step = passes::DistributeGraph(AccumulatedStep(model, spec, 3), mesh);
      ASSERT_TRUE(whole.ok() && step.ok()) << step.status();
      EXPECT_EQ(Collectives(*step), Collectives(*whole)) << step->ToString();
      EXPECT_GT(Collectives(*step), 2u);
    }
  }
}

// Three steps on a third of the batch each, all from the same states and without momentum, move the weights together by
// three times the mean of the gradients. Each moves the running statistics by its own; those of the whole step are the
// mean.
TEST(Accumulate, NormalisesEachMicroBatch) {
  const auto model = [](int64_t rows) {
    const std::string n = std::to_string(rows);
    return "graph @bn(%x: f32[" + n +
           ",4] split(0), state %s: f32[4], state %b: f32[4], state %m: f32[4], state %v: "
           "f32[4], state %w: f32[4,3]) -> (logits: f32[" +
           n +
           ",3] split(0)) {\n"
           "  %y = batch_norm_inference %x, %s, %b, %m, %v {epsilon=1e-05} : f32[" +
           n +
           ",4]\n"
           "  %z = matmul %y, %w : f32[" +
           n + ",3]\n  return %z\n}";
  };
  const TrainStepSpec spec = AccumulatedSpec({"SGD", {{"learning_rate", 0.5}}});
  const Graph all = AccumulatedStep(model(12), spec, 3), third = AccumulatedStep(model(4), spec, 1);
  const std::vector<Tensor> inputs = InputsOf(all, 5, 0.5, 2);
  const std::vector<Tensor> found = InterpretOneRank(all, inputs).value();
  std::vector<std::vector<Tensor>> of_thirds;
  for (int64_t j = 0; j < 3; ++j) {
    std::vector<Tensor> rows = inputs;  // every third row
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!all.inputs()[i].is_data()) continue;
      Tensor part(third.inputs()[i].value.type());
      const size_t row = part.num_bytes() / 4;
      for (size_t at = 0; at < 4; ++at)
        std::memcpy(part.mutable_bytes() + at * row, inputs[i].bytes() + (3 * at + static_cast<size_t>(j)) * row, row);
      rows[i] = part;
    }
    of_thirds.push_back(InterpretOneRank(third, rows).value());
  }
  size_t moved = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    for (int64_t at = 0; at < found[i].num_elements(); ++at) {
      const double mean = (of_thirds[0][i].At(at) + of_thirds[1][i].At(at) + of_thirds[2][i].At(at)) / 3;
      EXPECT_NEAR(found[i].At(at), mean, 1e-5) << all.results()[i].name;
      moved += of_thirds[0][i].At(at) != of_thirds[1][i].At(at);
    }
  }
  EXPECT_GT(moved, 8u);
}

std::string AccumulationError(std::string_view model, int64_t accumulate) {
  Graph step = ParseGraph(model).value();
  TrainStepSpec spec;
  spec.accumulate = accumulate;
  return std::string(passes::MakeTrainStep(step, spec).message());
}

TEST(Accumulate, NamesAnInputThatCannotBeCut) {
  EXPECT_EQ(AccumulationError(kMlp, 5),
            "accumulate is 5, but dimension 0 of input %x (f32[12,5]), the batch, is 12, no multiple of 5; it can be "
            "1, 2, 3, 4, 6, 12");
  EXPECT_EQ(
      AccumulationError("graph @f(%x: f32[0,5] split(0), state %w: f32[5,3]) -> (logits: f32[0,3] split(0)) {\n  %z = "
                        "matmul %x, %w : f32[0,3]\n  return %z\n}",
                        2),
      "accumulate is 2, but dimension 0 of input %x (f32[0,5]), the batch, is 0, no multiple of 2 but 0");
  EXPECT_EQ(AccumulationError(kMlp, 0), "accumulate is 0, expected at least 1");
  EXPECT_EQ(AccumulationError(kMlp, -2), "accumulate is -2, expected at least 1");
  EXPECT_EQ(
      AccumulationError("graph @f(%x: f32[4,5], state %w: f32[5,3]) -> (logits: f32[4,3]) {\n  %z = matmul %x, %w : "
                        "f32[4,3]\n  return %z\n}",
                        2),
      "accumulate is 2, but no input of graph @f is a batch, which is split along axis data; its inputs are x "
      "f32[4,5], target i64[4]");
}

TEST(Accumulate, NamesAnInputOfWhichRanksHaveNoMicroBatches) {
  const Graph step = AccumulatedStep(kMlp, {}, 4);
  EXPECT_EQ(
      passes::DistributeGraph(step, Mesh({{"data", 2}})).status().message(),
      "accumulate: each of 2 ranks has 6 of the 12 rows of input %x (f32[12,5]), which cannot be cut into 4 equal "
      "micro-batches; the batch has to be a multiple of 2 * 4 = 8");
}

TEST(Accumulate, NeedsStatisticsOfARankOnSeveral) {
  const Graph step = AccumulatedStep(kConvNet, {}, 3);
  EXPECT_TRUE(passes::DistributeGraph(step, Mesh({{"data", 1}})).ok());
  const std::string error(passes::DistributeGraph(step, Mesh({{"data", 2}})).status().message());
  EXPECT_NE(error.find("batch_norm_training %n normalises by the statistics of all ranks"), std::string::npos) << error;
  EXPECT_NE(error.find("batch_statistics=\"rank\""), std::string::npos) << error;
}

}  // namespace
}  // namespace lockstep
