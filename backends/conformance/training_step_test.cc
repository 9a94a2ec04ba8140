// Compares whole training steps with the interpreter, on one rank and on several in this process, with gradients in
// buckets.

#include "backends/compile.h"
#include "backends/conformance/compare_with_interpreter.h"
#include "backends/conformance/tested_backend.h"
#include "backends/run_in_process.h"
#include "core/local_part.h"
#include "core/local_types.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "passes/training/train_step.h"
#include "passes/training/training_mode.h"

namespace lockstep {
namespace {

constexpr char kMlpStep[] = R"(
graph @mlp(%x: f32[8,12] split(0), %y: i64[8] split(0), state %w: f32[12,5], state %b: f32[5], state %v: f32[12,5]) -> (loss: f32[], %w: f32[12,5], %b: f32[5], %v: f32[12,5]) {
  %z = matmul %x, %w : f32[8,5]
  %bb = broadcast %b {dims=[1], shape=[8,5]} : f32[8,5]
  %zb = add %z, %bb : f32[8,5]
  %h = tanh %zb : f32[8,5]
  %loss, %dh = softmax_cross_entropy %h, %y {scale=0.125} : f32[], f32[8,5]
  %hh = mul %h, %h : f32[8,5]
  %one = constant {value=dense<f32[]: 1.0>} : f32[]
  %ones = broadcast %one {dims=[], shape=[8,5]} : f32[8,5]
  %d = sub %ones, %hh : f32[8,5]
  %dz = mul %dh, %d : f32[8,5]
  %dw = matmul %x, %dz {transpose_a=true} : f32[12,5]
  %db = reduce_sum %dz {dims=[0]} : f32[5]
  %w1, %v1 = sgd_momentum %w, %v, %dw {learning_rate=0.1, momentum=0.9} : f32[12,5], f32[12,5]
  %b1 = sgd %b, %db {learning_rate=0.1} : f32[5]
  return %loss, %w1, %b1, %v1
}
)";

constexpr char kConvNet[] = R"(
graph @convnet(%x: f32[8,2,10,10] split(0), state %k: f32[5,2,3,3], state %c: f32[5], state %w: f32[5,80], state %b: f32[5]) -> (logits: f32[8,5] split(0)) {
  %z = convolution %x, %k {dilation=[1,1], padding_high=[1,0], padding_low=[0,1], stride=[1,1]} : f32[8,5,9,9]
  %cc = broadcast %c {dims=[1], shape=[8,5,9,9]} : f32[8,5,9,9]
  %h = add %z, %cc : f32[8,5,9,9]
  %a = tanh %h : f32[8,5,9,9]
  %p = max_pool %a {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[8,5,4,4]
  %f = reshape %p {shape=[8,80]} : f32[8,80]
  %y = matmul %f, %w {transpose_b=true} : f32[8,5]
  %bb = broadcast %b {dims=[1], shape=[8,5]} : f32[8,5]
  %logits = add %y, %bb : f32[8,5]
  return %logits
}
)";

Graph Parse(std::string_view text) {
  auto graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return std::move(*graph);
}

constexpr char kBatchNorm[] = R"(
graph @bn(%x: f32[8,3,4,4] split(0), state %k: f32[5,3,3,3], state %s: f32[5], state %b: f32[5], state %m: f32[5], state %v: f32[5]) -> (logits: f32[8,20]) {
  %z = convolution %x, %k {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[1,1]} : f32[8,5,2,2]
  %n = batch_norm_inference %z, %s, %b, %m, %v {epsilon=0.1} : f32[8,5,2,2]
  %r = relu %n : f32[8,5,2,2]
  %logits = reshape %r {shape=[8, 20]} : f32[8,20]
  return %logits
}
)";

Graph ConvNetStep(DType precision = DType::kF32) {
  Graph graph = Parse(kConvNet);
  passes::TrainStepSpec spec;
  spec.precision = precision;
  spec.optimizer.options["momentum"] = 0.9;
  const absl::Status status = passes::MakeTrainStep(graph, spec);
  LOCKSTEP_CHECK(status.ok()) << status;
  return graph;
}

// Compares on `ranks` ranks, as a distributed graph, with buckets of 1 KiB so that there are several.
void ExpectAgrees(const Graph& one_rank, int64_t ranks, int threads, bool optimize = true, double tolerance = 2e-5) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, " << threads << " threads, optimize " << optimize);
  CompileOptions options;
  options.threads = threads;
  options.bucket_bytes = 1024;
  options.optimize = optimize;
  if (ranks == 1) return ExpectAgreesWithInterpreter(one_rank, RandomInputs(one_rank), tolerance, options);
  const auto graph = passes::DistributeGraph(one_rank, Mesh({{"data", ranks}}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto local = ToLocalTypes(*graph);
  ASSERT_TRUE(local.ok()) << local.status();
  options.mesh = graph->mesh();
  ExpectAgreesWithInterpreter(*local, RandomInputs(*local), tolerance, options);
}

TEST(TrainingStep, Mlp) {
  for (int64_t ranks : {1, 2, 4}) {
    for (int threads : {1, 2}) ExpectAgrees(Parse(kMlpStep), ranks, threads);
  }
}

TEST(TrainingStep, ConvNet) {
  const Graph step = ConvNetStep();
  for (int64_t ranks : {1, 2, 4}) {
    for (int threads : {1, 2}) ExpectAgrees(step, ranks, threads);
  }
}

// The results of a step on `ranks` ranks with eight virtual ranks. The placements of its inputs and results along
// `data` decide about the parts of the ranks.
std::vector<Tensor> OfVirtualRanks(const Graph& step, int64_t ranks, const std::vector<Tensor>& inputs) {
  CompileOptions options;
  options.mesh = Mesh({{"data", ranks}});
  options.virtual_ranks = 8;
  std::vector<std::vector<Tensor>> results(static_cast<size_t>(ranks));
  const absl::Status status = ForEachRank(static_cast<int>(ranks), [&](Communicator& communicator) -> absl::Status {
    const auto rank = static_cast<size_t>(communicator.rank());
    ASSIGN_OR_RETURN(const RankDevice opened, TestedBackend().OpenDevice(communicator));
    ASSIGN_OR_RETURN(Executable executable, Compile(step.Clone(), TestedBackend(), options));
    ASSIGN_OR_RETURN(const Graph local, ParseGraph(executable.graph_text));
    std::vector<Tensor> parts;
    for (size_t i = 0; i < inputs.size(); ++i)
      parts.push_back(LocalPart(inputs[i], local.inputs()[i].placements(), local.mesh(), communicator.rank()));
    ASSIGN_OR_RETURN(const auto executor,
                     Executor::Load(std::move(executable), opened.communicator, opened.device.get()));
    ASSIGN_OR_RETURN(results[rank], RunOnce(*executor, local, parts));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  for (const std::vector<Tensor>& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

// Also where the backend computes convolutions channels-last, and where sums are large enough to travel in slices.
TEST(TrainingStep, VirtualRanksHaveTheSameBitsOnAnyNumberOfRanks) {
  Graph wide = Parse(R"(
graph @wide(%x: f32[8,3] split(0), state %w: f32[3,4000], state %v: f32[4000,5]) -> (logits: f32[8,5] split(0)) {
  %h = matmul %x, %w : f32[8,4000]
  %y = matmul %h, %v : f32[8,5]
  return %y
}
)");
  ASSERT_TRUE(passes::MakeTrainStep(wide, {}).ok());
  Graph normalised = Parse(kBatchNorm);
  ASSERT_TRUE(passes::RunPasses({passes::TrainingMode({})}, normalised).ok());
  ASSERT_TRUE(passes::MakeTrainStep(normalised, {}).ok());
  const Graph steps[] = {std::move(wide), std::move(normalised), ConvNetStep(), ConvNetStep(DType::kBF16)};
  for (const Graph& step : steps) {
    const std::vector<Tensor> inputs = RandomInputs(step)[0];
    const std::vector<Tensor> expected = OfVirtualRanks(step, 1, inputs);
    for (const int64_t ranks : {2, 4, 8})
      EXPECT_EQ(OfVirtualRanks(step, ranks, inputs), expected) << step.name() << " on " << ranks << " ranks";
  }
}

// Between 16-bit ops a loop rounds less than the interpreter. Without optimization, products are computed in 16 bits on
// all processors, also where widening them would be faster.
TEST(TrainingStep, MixedPrecision) {
  const Graph step = ConvNetStep(DType::kBF16);
  for (int64_t ranks : {1, 2, 4}) {
    for (int threads : {1, 2}) ExpectAgrees(step, ranks, threads, /*optimize=*/true, 0.03);
  }
  ExpectAgrees(step, 2, 1, /*optimize=*/false, 0.03);
  ExpectAgrees(ConvNetStep(DType::kF16), 2, 1, /*optimize=*/true, 0.01);
}

// Each rank has its own tokens; the gradient of the table is the sum of the ranks' sums.
TEST(TrainingStep, Embedding) {
  Graph step = Parse(R"(
graph @tokens(%x: i64[8,6] split(0), state %table: f32[5,70], state %w: f32[420,5]) -> (logits: f32[8,5] split(0)) {
  %e = gather %table, %x {dim=0} : f32[8,6,70]
  %f = reshape %e {shape=[8,420]} : f32[8,420]
  %z = matmul %f, %w : f32[8,5]
  return %z
}
)");
  ASSERT_TRUE(passes::MakeTrainStep(step, {}).ok());
  for (int64_t ranks : {1, 2, 4}) {
    for (int threads : {1, 2}) ExpectAgrees(step, ranks, threads);
  }
}

// A loop with a gate, in both directions: products with scanned values, stacked and summed results, in the right order.
TEST(TrainingStep, Recurrent) {
  for (const char* reverse : {"false", "true"}) {
    std::string text = R"(
graph @recurrent(%x: f32[8,7,5] split(0), state %w: f32[6,5], state %r: f32[3,6], state %b: f32[6], state %v: f32[3,5]) -> (logits: f32[8,5] split(0)) {
  %xs = transpose %x {permutation=[1,0,2]} : f32[7,8,5]
  %0 = constant {value=dense<f32[]: 0.0>} : f32[]
  %h = broadcast %0 {dims=[], shape=[8,3]} : f32[8,3]
  %last, %all = scan %h, %xs, %w, %r, %b {carried=1, length=7, scanned=1, reverse=$, body=
    graph @step(%h: f32[8,3], %x: f32[8,5], %w: f32[6,5], %r: f32[3,6], %b: f32[6]) -> (h: f32[8,3], y: f32[8,3]) {
      %of_x = matmul %x, %w {transpose_b=true} : f32[8,6]
      %of_h = matmul %h, %r : f32[8,6]
      %sum = add %of_x, %of_h : f32[8,6]
      %bias = broadcast %b {dims=[1], shape=[8,6]} : f32[8,6]
      %both = add %sum, %bias : f32[8,6]
      %g = slice %both {start=[0,0], limit=[8,3], stride=[1,1]} : f32[8,3]
      %c = slice %both {start=[0,3], limit=[8,6], stride=[1,1]} : f32[8,3]
      %gate = sigmoid %g : f32[8,3]
      %new = tanh %c : f32[8,3]
      %difference = sub %new, %h : f32[8,3]
      %step = mul %gate, %difference : f32[8,3]
      %next = add %h, %step : f32[8,3]
      return %next, %next
    }} : f32[8,3], f32[7,8,3]
  %sum = reduce_sum %all {dims=[0]} : f32[8,3]
  %s = add %sum, %last : f32[8,3]
  %z = matmul %s, %v : f32[8,5]
  return %z
}
)";
    Graph step = Parse(text.replace(text.find('$'), 1, reverse));
    ASSERT_TRUE(passes::MakeTrainStep(step, {}).ok());
    for (int64_t ranks : {1, 2, 4}) {
      for (int threads : {1, 2}) ExpectAgrees(step, ranks, threads);
    }
    ExpectAgrees(step, 2, 1, /*optimize=*/false);
  }
}

// A loop over micro-batches, of which each rank has a part. An earlier loop counts the labels that are not ignored.
TEST(TrainingStep, MicroBatches) {
  Graph convnet = Parse(kConvNet), batch_norm = Parse(kBatchNorm);
  ASSERT_TRUE(passes::RunPasses({passes::TrainingMode({.statistics = "rank"})}, batch_norm).ok());
  passes::TrainStepSpec spec;
  spec.accumulate = 2;
  ASSERT_TRUE(passes::MakeTrainStep(batch_norm, spec).ok());
  spec.losses[0].options["ignore_index"] = int64_t{1};
  ASSERT_TRUE(passes::MakeTrainStep(convnet, spec).ok());
  for (const Graph* step : {&convnet, &batch_norm}) {
    for (int64_t ranks : {1, 2, 4}) ExpectAgrees(*step, ranks, /*threads=*/ranks == 2 ? 2 : 1);
    ExpectAgrees(*step, 2, 1, /*optimize=*/false);
  }
}

// Returns the smallest memory with which the program can be compiled, which the error for a smaller limit states.
uint64_t LeastMemory(const Graph& graph, CompileOptions options) {
  options.memory_limit = 1;
  const absl::Status status = Compile(graph.Clone(), TestedBackend(), options).status();
  const std::string message(status.message()), before = "needs at least ";
  const size_t at = message.find(before);
  LOCKSTEP_CHECK(at != std::string::npos) << status;
  return std::stoull(message.substr(at + before.size()));
}

uint64_t MemoryOf(const Executable& executable) {
  return executable.BytesOf(BufferKind::kArena) + executable.BytesOf(BufferKind::kState) +
         executable.BytesOf(BufferKind::kConstant) + executable.BytesOf(BufferKind::kRegistered);
}

constexpr char kDeep[] = R"(
graph @deep(%x: f32[32,3] split(0), state %a: f32[3,64], state %b: f32[64,3], state %c: f32[3,64], state %d: f32[64,5]) -> (logits: f32[32,5] split(0)) {
  %1 = matmul %x, %a : f32[32,64]
  %2 = tanh %1 : f32[32,64]
  %3 = matmul %2, %b : f32[32,3]
  %4 = tanh %3 : f32[32,3]
  %5 = matmul %4, %c : f32[32,64]
  %6 = tanh %5 : f32[32,64]
  %7 = matmul %6, %d : f32[32,5]
  return %7
}
)";

// Recomputed values are equal, in a program and in the loop of micro-batches.
TEST(TrainingStep, OfLittleMemory) {
  for (int64_t accumulate : {1, 2}) {
    for (int64_t ranks : {1, 2}) {
      SCOPED_TRACE(testing::Message() << accumulate << " micro-batches, " << ranks << " ranks");
      Graph step = Parse(kDeep);
      passes::TrainStepSpec spec;
      spec.accumulate = accumulate;
      ASSERT_TRUE(passes::MakeTrainStep(step, spec).ok());
      CompileOptions options;
      if (ranks > 1) {
        step = *passes::DistributeGraph(step, Mesh({{"data", ranks}}));
        step = *ToLocalTypes(step);
        options.mesh = step.mesh();
      }
      const auto inputs = RandomInputs(step);
      const auto whole = RunInProcess(step, TestedBackend(), inputs, options);
      ASSERT_TRUE(whole.ok()) << whole.status();
      const uint64_t memory = MemoryOf(*Compile(step.Clone(), TestedBackend(), options));
      options.memory_limit = LeastMemory(step, options);
      // The workspace of one product on a GPU is larger than all values here.
      const bool is_possible = !IsGpu();
      if (is_possible) {
        EXPECT_LT(options.memory_limit, memory);
      }
      const auto executable = Compile(step.Clone(), TestedBackend(), options);
      ASSERT_TRUE(executable.ok()) << executable.status();
      EXPECT_LE(MemoryOf(*executable), options.memory_limit);
      if (is_possible) {
        EXPECT_GE(executable->recomputed.kernels, accumulate);
      }
      const auto less = RunInProcess(step, TestedBackend(), inputs, options);
      ASSERT_TRUE(less.ok()) << less.status();
      for (size_t rank = 0; rank < whole->size(); ++rank) {
        for (size_t i = 0; i < (*whole)[rank].size(); ++i) EXPECT_TRUE((*less)[rank][i] == (*whole)[rank][i]);
      }
      ExpectAgreesWithInterpreter(step, inputs, 2e-5, options);
    }
  }
}

// Statistics of the whole batch, and of each rank's part.
TEST(TrainingStep, BatchNorm) {
  for (const char* statistics : {"global", "rank"}) {
    Graph step = Parse(kBatchNorm);
    ASSERT_TRUE(passes::RunPasses({passes::TrainingMode({.statistics = statistics})}, step).ok());
    ASSERT_TRUE(passes::MakeTrainStep(step, {}).ok());
    for (int64_t ranks : {1, 2, 4}) ExpectAgrees(step, ranks, 1);
    ExpectAgrees(step, 2, 1, /*optimize=*/false);
  }
}

TEST(TrainingStep, Unoptimised) {
  ExpectAgrees(Parse(kMlpStep), 2, 1, /*optimize=*/false);
  ExpectAgrees(ConvNetStep(), 2, 1, /*optimize=*/false);
}

// An in-place reduction must not start before all readers of the rank's own partial value are done.
TEST(TrainingStep, PartialValueIsReadBeforeItIsReduced) {
  const Graph graph = Parse(R"(
mesh {data=2}
local graph @partial(%x: f32[2,3] split(0), %w: f32[2,4] split(0)) -> (r: f32[3,4], s: f32[3,4]) {
  %g = matmul %x, %w {transpose_a=true} : f32[3,4] partial(sum)
  %n = neg %g : f32[3,4] partial(sum)
  %r = all_reduce %g {axis=data, kind=sum} : f32[3,4]
  %s = all_reduce %n {axis=data, kind=sum} : f32[3,4]
  return %r, %s
}
)");
  for (bool optimize : {false, true}) {
    CompileOptions options;
    options.mesh = graph.mesh();
    options.optimize = optimize;
    ExpectAgreesWithInterpreter(graph, RandomInputs(graph), 2e-5, options);
  }
}

}  // namespace
}  // namespace lockstep
