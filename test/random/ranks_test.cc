// The draws of a program on several ranks are those of one rank: bit by bit, on the interpreter and on the CPU, for any
// splits. Interpreter and CPU draw the same numbers.

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "backends/run_in_process.h"
#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/local_types.h"
#include "core/printer.h"
#include "core/random.h"
#include "core/random_tensor.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "passes/optimize/dce.h"
#include "passes/pass.h"
#include "passes/training/autodiff.h"
#include "passes/training/train_step.h"
#include "passes/training/training_mode.h"
#include "test/random/draws.h"

namespace lockstep {
namespace {

using RankTensors = std::vector<std::vector<Tensor>>;  // [rank][i]

const Mesh kMeshes[] = {Mesh({{"data", 1}}), Mesh({{"data", 2}}), Mesh({{"data", 3}}), Mesh({{"data", 4}}),
                        Mesh({{"data", 2}, {"model", 2}})};

Graph LocalProgram(const Graph& graph, const Mesh& mesh) {
  absl::StatusOr<Graph> placed = passes::DistributeGraph(graph, mesh);
  LOCKSTEP_CHECK(placed.ok()) << placed.status();
  LOCKSTEP_CHECK(passes::RunPasses({passes::Dce()}, *placed).ok());
  absl::StatusOr<Graph> local = ToLocalTypes(*placed);
  LOCKSTEP_CHECK(local.ok()) << local.status();
  return *std::move(local);
}

RankTensors InputsOfRanks(const Graph& local, const std::vector<Tensor>& inputs, const Mesh& mesh) {
  RankTensors parts(static_cast<size_t>(mesh.num_ranks()));
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (size_t i = 0; i < inputs.size(); ++i)
      parts[rank].push_back(LocalPart(inputs[i], local.inputs()[i].placements(), mesh, static_cast<int64_t>(rank)));
  }
  return parts;
}

RankTensors RunOnCpu(const Graph& local, const RankTensors& inputs, const Mesh& mesh, bool optimize) {
  const auto backend = CreateBackend("cpu");
  LOCKSTEP_CHECK(backend.ok()) << backend.status();
  CompileOptions options;
  options.mesh = mesh;
  options.threads = 2;
  options.optimize = optimize;
  const absl::StatusOr<RankTensors> results = RunInProcess(local, **backend, inputs, options);
  LOCKSTEP_CHECK(results.ok()) << results.status();
  return *results;
}

// Compares every result of every rank with its part of the whole.
void ExpectParts(const Graph& local, const RankTensors& found, const std::vector<Tensor>& whole, const Mesh& mesh) {
  for (size_t rank = 0; rank < found.size(); ++rank) {
    for (size_t i = 0; i < whole.size(); ++i) {
      const Result& result = local.results()[i];
      EXPECT_EQ(found[rank][i], LocalPart(whole[i], result.placements, mesh, static_cast<int64_t>(rank)))
          << "result " << result.name << " of rank " << rank;
    }
  }
}

// --- Draws -----------------------------------------------------------------------------------------------------------

// Inputs are ones, so that the draws show at their positions: `rows` is split along dimension 0, `columns` along 1,
// `grid` along both.
Graph Program(const Mesh& mesh) {
  Graph graph("draws");
  const auto split = [](std::string axis, int64_t dim) { return std::pair(std::move(axis), Placement::Split(dim)); };
  const Value rows = graph.AddInput("rows", {DType::kF32, {12, 5}}, false, {split("data", 0)}).value();
  const Value columns = graph.AddInput("columns", {DType::kF64, {3, 12, 2}}, false, {split("data", 1)}).value();
  PlacementMap both = {split("data", 0)};
  if (mesh.has_axis("model")) both.insert(split("model", 1));
  const Value grid = graph.AddInput("grid", {DType::kF32, {12, 4}}, false, both).value();
  Builder b(graph);
  const auto add = [&](const char* name, Value value) {
    LOCKSTEP_CHECK(b.status().ok()) << b.status();
    LOCKSTEP_CHECK(graph.AddResult(name, value).ok()) << name;
  };
  for (const auto& [name, x] : {std::pair("rows", rows), {"columns", columns}, {"grid", grid}}) {
    const std::string of = name;
    add((of + ".uniform").c_str(), b.Mul(x, RandomUniform(b, x.type(), -1, 3)));
    add((of + ".normal").c_str(), b.Mul(x, RandomNormal(b, x.type(), 1, 2)));
    add((of + ".bernoulli").c_str(), b.Convert(RandomBernoulli(b, b.Scale(x, 0.5)), DType::kI32));
    const Dropped dropped = RandomDropout(b, x, b.Constant(Tensor::Scalar(DType::kF32, 0.5)));
    add((of + ".dropout").c_str(), dropped.result);
    add((of + ".mask").c_str(), dropped.mask);
  }
  add("rows.multinomial", RandomMultinomial(b, rows, 7));
  add("whole", RandomUniform(b, {DType::kF32, {12, 5}}, 0, 1));
  return graph;
}

std::vector<Tensor> InputsOf(const Graph& graph, int64_t seed, int64_t step) {
  std::vector<Tensor> inputs;
  for (const Input& input : graph.inputs()) {
    if (input.name() == kRandomSeed) inputs.push_back(Tensor::Of<int64_t>({}, {seed}));
    else if (input.name() == kRandomStep) inputs.push_back(Tensor::Of<int64_t>({}, {step}));
    else inputs.push_back(Tensor::Full(input.value.type(), 1));
  }
  return inputs;
}

TEST(DrawsOnRanks, AreThoseOfOneRank) {
  const Graph one_rank = Program(kMeshes[0]);
  const std::vector<Tensor> inputs = InputsOf(one_rank, 11, 5);
  const std::vector<Tensor> whole = InterpretOneRank(one_rank, inputs).value();
  const std::vector<Tensor> on_cpu = RunOnCpu(one_rank, {inputs}, kMeshes[0], /*optimize=*/true)[0];
  for (const Mesh& mesh : kMeshes) {
    if (!TestsEverything() && *mesh.axis_size("data") > 2) continue;
    SCOPED_TRACE(mesh.ToString());
    const Graph local = LocalProgram(Program(mesh), mesh);
    ASSERT_EQ(local.num_ranks(), mesh.num_ranks());
    const RankTensors parts = InputsOfRanks(local, inputs, mesh);
    ExpectParts(local, Interpret(local, parts).value(), whole, mesh);
    for (bool optimize : {false, true}) ExpectParts(local, RunOnCpu(local, parts, mesh, optimize), on_cpu, mesh);
    if (mesh.num_ranks() == 1) continue;
    // Each rank draws only its own part.
    EXPECT_EQ(local.FindResult("rows.uniform")->value.shape(), Shape({12 / *mesh.axis_size("data"), 5}));
    int whole_draws = 0;
    for (const Node& node : local.nodes()) {
      whole_draws += node.Is("random_bits") && node.type().shape == Shape({12, 5});
      EXPECT_TRUE(!node.op().has_trait(kCollective) || node.Is("shard")) << node.Describe();
    }
    EXPECT_EQ(whole_draws, 2) << "the mask of rows, which no annotation splits, and `whole`\n" << local.ToString();
  }
}

TEST(DrawsOnRanks, TheCpuDrawsWhatTheInterpreterDoes) {
  const Graph graph = Program(kMeshes[0]);
  for (const auto& [seed, step] : {std::pair<int64_t, int64_t>(0, 0), {-3, int64_t{1} << 33}}) {
    const std::vector<Tensor> inputs = InputsOf(graph, seed, step);
    const std::vector<Tensor> expected = InterpretOneRank(graph, inputs).value();
    const std::vector<Tensor> found = RunOnCpu(graph, {inputs}, kMeshes[0], /*optimize=*/true)[0];
    for (size_t i = 0; i < expected.size(); ++i) {
      const Result& result = graph.results()[i];
      if (!result.name.ends_with(".normal")) {
        EXPECT_EQ(found[i], expected[i]) << result.name;
        continue;
      }
      for (int64_t at = 0; at < expected[i].num_elements(); ++at)  // logarithms and cosines, rounded twice
        EXPECT_NEAR(found[i].At(at), expected[i].At(at), 4e-6);
    }
  }
}

// --- Training --------------------------------------------------------------------------------------------------------

constexpr char kMlp[] = R"(
graph @mlp(%x: f32[12,5] split(0), state %w1: f32[5,16], state %b1: f32[16], state %w2: f32[16,3]) -> (logits: f32[12,3] split(0)) {
  %p = constant {value=dense<f32[]: 0.3>} : f32[]
  %h  = matmul %x, %w1 : f32[12,16]
  %bb = broadcast %b1 {shape=[12,16], dims=[1]} : f32[12,16]
  %hb = add %h, %bb : f32[12,16]
  %a  = tanh %hb : f32[12,16]
  %d, %dm = dropout %a, %p : f32[12,16], bool[12,16]
  %e, %em = dropout %d, %p : f32[12,16], bool[12,16]
  %z  = matmul %e, %w2 : f32[12,3]
  return %z
}
)";

Graph StepOf(bool drops) {
  Graph step = ParseGraph(kMlp).value();
  passes::TrainingModeOptions mode;
  mode.dropout = drops;
  LOCKSTEP_CHECK(passes::RunPasses({passes::TrainingMode(mode)}, step).ok());
  passes::TrainStepSpec spec;
  spec.optimizer = {"SGD", {{"learning_rate", 0.5}}};
  const absl::Status made = passes::MakeTrainStep(step, spec);
  LOCKSTEP_CHECK(made.ok()) << made;
  return step;
}

struct History {
  std::vector<double> losses;
  std::map<std::string, Tensor> states;
};

// Trains on the CPU. After each step, every state is bitwise equal on all ranks.
History Train(const Graph& step, const Mesh& mesh, int steps, int64_t seed) {
  const Graph local = LocalProgram(step, mesh);
  EXPECT_EQ(local.num_ranks(), mesh.num_ranks());
  History history;
  std::mt19937_64 random(3);
  for (const Input& input : step.inputs()) {
    if (!input.is_state) continue;
    const TensorType& type = input.value.type();
    history.states[input.name()] = IsFloat(type.dtype) ? RandomTensor(type, random, -0.5, 0.5) : Tensor(type);
  }
  if (history.states.contains("random/seed")) history.states["random/seed"] = Tensor::Of<int64_t>({}, {seed});
  for (int number = 0; number < steps; ++number) {
    std::vector<Tensor> inputs;
    for (const Input& input : step.inputs()) {
      const TensorType& type = input.value.type();
      if (input.is_state) inputs.push_back(history.states.at(input.name()));
      else if (input.setting) inputs.push_back(Tensor::Scalar(type.dtype, input.setting->value));
      else inputs.push_back(IsFloat(type.dtype) ? RandomTensor(type, random, -1, 1) : RandomTensor(type, random, 0, 2));
    }
    const RankTensors found = RunOnCpu(local, InputsOfRanks(local, inputs, mesh), mesh, /*optimize=*/true);
    EXPECT_EQ(found.size(), static_cast<size_t>(mesh.num_ranks()));
    for (size_t i = 0; i < local.results().size(); ++i) {
      const Result& result = local.results()[i];
      for (const std::vector<Tensor>& of_rank : found) EXPECT_EQ(of_rank[i], found[0][i]) << result.name;
      if (result.is_state) history.states[result.name] = found[0][i];
      else history.losses.push_back(found[0][i].At(0));
    }
  }
  return history;
}

TEST(TrainingOnRanks, DropsAsOneRankDoes) {
  const Graph step = StepOf(/*drops=*/true);
  const History one = Train(step, kMeshes[0], 5, /*seed=*/9);
  ASSERT_EQ(one.losses.size(), 5u);
  EXPECT_EQ(one.states.at("random/step"), Tensor::Of<int64_t>({}, {5}));
  for (const Mesh& mesh : kMeshes) {
    SCOPED_TRACE(mesh.ToString());
    const History several = Train(step, mesh, 5, /*seed=*/9);
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(several.losses[i], one.losses[i], 1e-6) << i;
    EXPECT_EQ(several.states.at("random/step"), one.states.at("random/step"));
  }
  EXPECT_NE(Train(step, kMeshes[1], 1, /*seed=*/8).losses[0], one.losses[0]);
  const Graph without = StepOf(/*drops=*/false);
  EXPECT_EQ(without.FindInput("random/seed"), nullptr);
  EXPECT_NE(Train(without, kMeshes[1], 1, 0).losses[0], one.losses[0]);
}

// Elements dropped in the forward pass have gradient zero, and the others have their scale: for inputs of ones, the
// derivative of the sum of the results is the result itself.
TEST(Training, TheGradientHasTheMaskOfTheForwardPass) {
  Graph graph = ParseGraph(R"(
graph @f(%p: f32[], state %w: f32[40,50]) -> (y: f32[40,50], loss: f32[]) {
  %y, %mask = dropout %w, %p : f32[40,50], bool[40,50]
  %loss = reduce_sum %y {dims=[0,1]} : f32[]
  return %y, %loss
})")
                    .value();
  ASSERT_TRUE(passes::RunPasses({passes::TrainingMode(), passes::Autodiff("loss", {"w"})}, graph).ok());
  for (double ratio : {0.0, 0.4, 1.0}) {
    std::vector<Tensor> inputs = InputsOf(graph, 4, 2);
    inputs[0] = Tensor::Scalar(DType::kF32, ratio);
    for (const std::vector<Tensor>& found :
         {InterpretOneRank(graph, inputs).value(), RunOnCpu(graph, {inputs}, kMeshes[0], /*optimize=*/true)[0]}) {
      std::map<std::string, Tensor> by_name;
      for (size_t i = 0; i < found.size(); ++i) by_name[graph.results()[i].name] = found[i];
      EXPECT_EQ(by_name.at("grad/w"), by_name.at("y")) << ratio;
    }
  }
}

}  // namespace
}  // namespace lockstep
