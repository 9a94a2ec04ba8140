// Meshes with several axes of more than one rank. Each collective runs on its axis' communicator, replicas are the
// ranks that hold the same part of a value, and a failure in one part of the world reaches all ranks.

#include <barrier>
#include <map>
#include <random>

#include "backends/executor_test_support.h"
#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/local_types.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "passes/distribute/distribute.h"
#include "passes/training/train_step.h"
#include "runtime/execution/agreement.h"
#include "runtime/execution/executor.h"
#include "test/meaning/meaning.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const Mesh kMeshGrid({{"data", 2}, {"model", 2}});

// The rows of the batch are split over `data`; the columns of the first weight and the rows of the second are split
// over `model`.
constexpr char kMeshMlp[] = R"(
graph @mlp(%x: f32[8,6] split(0), state %w: f32[6,10] split(1, model), state %b: f32[10] split(0, model), state %u: f32[10,5] split(0, model), state %c: f32[5]) -> (logits: f32[8,5]) {
  %z = matmul %x, %w : f32[8,10]
  %bb = broadcast %b {dims=[1], shape=[8,10]} : f32[8,10]
  %zb = add %z, %bb : f32[8,10]
  %h = tanh %zb : f32[8,10]
  %y = matmul %h, %u : f32[8,5]
  %cc = broadcast %c {dims=[1], shape=[8,5]} : f32[8,5]
  %logits = add %y, %cc : f32[8,5]
  return %logits
}
)";

Graph MeshStep(std::string_view model) {
  absl::StatusOr<Graph> graph = ParseGraph(model);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  passes::TrainStepSpec spec;
  spec.optimizer = {"SGD", {{"learning_rate", 0.3}}};
  const absl::Status status = passes::MakeTrainStep(*graph, spec);
  LOCKSTEP_CHECK(status.ok()) << status;
  return *std::move(graph);
}

absl::StatusOr<std::unique_ptr<Executor>> LoadOnGrid(const std::string& text, Communicator& communicator,
                                                     Device& device) {
  CompileOptions options;
  options.mesh = kMeshGrid;
  return Load(text, communicator, device, options);
}

// The results of training for some steps: the loss of each step, and the states after it.
struct History {
  std::vector<Tensor> losses;
  std::vector<std::map<std::string, Tensor>> states;
};

constexpr int kSteps = 4;

// Returns the global values of the inputs of each step, and of the states before the first step.
std::vector<Tensor> GlobalInputs(const Graph& step, int number) {
  std::mt19937_64 random(static_cast<uint64_t>(number) + 5);
  std::vector<Tensor> inputs;
  for (const Input& input : step.inputs()) {
    const TensorType& type = input.value.type();
    if (input.setting) inputs.push_back(Tensor::Scalar(type.dtype, input.setting->value));
    else if (IsFloat(type.dtype)) inputs.push_back(RandomTensor(type, random, -0.5, 0.5));
    else inputs.push_back(RandomTensor(type, random, 0, 4));
  }
  return inputs;
}

// Trains on one rank of `mesh`, with its part of each value.
absl::StatusOr<History> TrainOnMesh(const Graph& step, const Mesh& mesh, Communicator& communicator) {
  ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
  ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(communicator));
  CompileOptions options;
  options.mesh = mesh;
  options.bucket_bytes = 256;
  ASSIGN_OR_RETURN(Executable executable, Compile(step.Clone(), *backend, options));
  ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), &communicator, opened.device.get()));
  History history;
  for (int number = 0; number < kSteps; ++number) {
    const std::vector<Tensor> whole = GlobalInputs(step, number);
    std::vector<Tensor> parts;
    std::vector<NamedInput> inputs;
    parts.reserve(whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      const Input& input = step.inputs()[i];
      if (input.is_state) {
        if (number == 0) RETURN_IF_ERROR(executor->AssignState(input.name(), {whole[i].type(), whole[i].bytes()}));
        continue;
      }
      if (input.setting) continue;  // not changed
      const Tensor& part = parts.emplace_back(LocalPart(whole[i], input.placements(), mesh, communicator.rank()));
      inputs.push_back({input.name(), {part.type(), part.bytes()}});
    }
    Tensor& loss = history.losses.emplace_back(TensorType{DType::kF32, {}});
    RETURN_IF_ERROR(executor->Run(inputs, std::vector<NamedResult>{{"loss", {loss.type(), loss.mutable_bytes()}}}));
    std::map<std::string, Tensor>& states = history.states.emplace_back();
    for (const ValueInfo& state : executor->executable().states) {
      Tensor& value = states.emplace(state.name, state.local_type).first->second;
      RETURN_IF_ERROR(executor->ReadState(state.name, {value.type(), value.mutable_bytes()}));
    }
  }
  RETURN_IF_ERROR(CheckReplicas(*executor, communicator));
  return history;
}

std::vector<History> TrainOnMeshRanks(const Graph& step, const Mesh& mesh) {
  std::vector<History> of_ranks(static_cast<size_t>(mesh.num_ranks()));
  const absl::Status status = ForEachRank(static_cast<int>(of_ranks.size()), [&](Communicator& communicator) {
    absl::StatusOr<History> history = TrainOnMesh(step, mesh, communicator);
    if (history.ok()) of_ranks[static_cast<size_t>(communicator.rank())] = *std::move(history);
    return history.status();
  });
  EXPECT_TRUE(status.ok()) << status;
  return of_ranks;
}

// Interprets the same steps for the ranks of the mesh.
std::vector<History> Interpreted(const Graph& step, const Mesh& mesh) {
  const absl::StatusOr<Graph> placed = passes::DistributeGraph(step, mesh);
  LOCKSTEP_CHECK(placed.ok()) << placed.status();
  const Graph local = *ToLocalTypes(*placed);
  std::vector<History> of_ranks(static_cast<size_t>(mesh.num_ranks()));
  for (int number = 0; number < kSteps; ++number) {
    auto inputs = SharesOfInputs(local, GlobalInputs(step, number));
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      for (size_t i = 0; i < local.inputs().size(); ++i) {
        const Input& input = local.inputs()[i];
        if (number > 0 && input.is_state) inputs[rank][i] = of_ranks[rank].states.back().at(input.name());
      }
    }
    const auto results = Interpret(local, inputs);
    LOCKSTEP_CHECK(results.ok()) << results.status();
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      std::map<std::string, Tensor>& states = of_ranks[rank].states.emplace_back();
      for (size_t i = 0; i < local.results().size(); ++i) {
        const Result& result = local.results()[i];
        if (result.is_state) states.emplace(result.name, (*results)[rank][i]);
        else of_ranks[rank].losses.push_back((*results)[rank][i]);
      }
    }
  }
  return of_ranks;
}

void ExpectClose(const Tensor& found, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.type(), expected.type()) << what;
  for (int64_t i = 0; i < found.num_elements(); ++i) EXPECT_NEAR(found.At(i), expected.At(i), 2e-6) << what << " " << i;
}

// The two weights are split along `model`, so the step needs collectives along both axes.
TEST(MeshAxes, TrainingWithSplitWeightsIsThatOfOneRank) {
  const Graph step = MeshStep(kMeshMlp);
  for (const Mesh& mesh : {kMeshGrid, Mesh({{"model", 2}, {"data", 2}}), Mesh({{"data", 4}, {"model", 2}})}) {
    SCOPED_TRACE(mesh.ToString());
    const std::vector<History> found = TrainOnMeshRanks(step, mesh), expected = Interpreted(step, mesh);
    const std::vector<History> one = TrainOnMeshRanks(step, Mesh({{"data", 1}}));
    ASSERT_EQ(found.size(), static_cast<size_t>(mesh.num_ranks()));
    for (size_t rank = 0; rank < found.size(); ++rank) {
      ASSERT_EQ(found[rank].losses.size(), static_cast<size_t>(kSteps)) << rank;
      for (size_t number = 0; number < kSteps; ++number) {
        SCOPED_TRACE("rank " + std::to_string(rank) + ", step " + std::to_string(number));
        EXPECT_EQ(found[rank].losses[number], found[0].losses[number]);
        ExpectClose(found[rank].losses[number], expected[rank].losses[number], "the interpreter's loss");
        ExpectClose(found[rank].losses[number], one[0].losses[number], "the loss of one rank");
        for (const auto& [name, value] : found[rank].states[number]) {
          const PlacementMap& placements = step.FindInput(name)->placements();
          ExpectClose(value, expected[rank].states[number].at(name), "the interpreter's " + name);
          const auto of_one = LocalPart(one[0].states[number].at(name), placements, mesh, static_cast<int64_t>(rank));
          ExpectClose(value, of_one, "one rank's " + name);
          for (size_t other = 0; other < rank; ++other) {  // compares bitwise
            const bool same_part =
                !placements.contains("model") || mesh.Coordinate(other, "model") == mesh.Coordinate(rank, "model");
            if (!same_part) continue;
            EXPECT_EQ(value, found[other].states[number].at(name)) << name << " of rank " << other;
          }
        }
      }
    }
    EXPECT_NE(found[0].states.back().at("w"), found[0].states.front().at("w"));
  }
}

TEST(MeshAxes, CollectivesAndBucketsAreOfBothAxes) {
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  CompileOptions options;
  options.mesh = kMeshGrid;
  const auto executable = Compile(MeshStep(kMeshMlp), **backend, options);
  ASSERT_TRUE(executable.ok()) << executable.status();
  EXPECT_THAT(executable->certificate.lines, testing::Contains(HasSubstr("along model")));
  EXPECT_THAT(executable->certificate.lines, testing::Contains(HasSubstr("along data")));
  std::vector<int> axes;
  for (const Buffer& buffer : executable->buffers) {
    if (buffer.kind == BufferKind::kRegistered) axes.push_back(buffer.mesh_axis);
  }
  EXPECT_THAT(axes, AllOf(testing::Contains(0), testing::Contains(1))) << executable->ToString();
}

// The mean is reduced along one axis and then along the other, in separate buckets.
TEST(MeshAxes, WhatOneAxisReducedTheOtherOneReduces) {
  const auto graph = ParseGraph(R"(
graph @norm(%x: f64[4,3,2,2] split(0) split(3, model), %scale: f64[3], %shift: f64[3]) -> (mean: f64[1,3], squared: f64[3], variance: f64[3]) {
  %y, %m, %v = batch_norm_training %x, %scale, %shift {epsilon=0.001, statistics=rank} : f64[4,3,2,2], f64[3], f64[3]
  %mean = reshape %m {shape=[1, 3]} : f64[1,3]
  %squared = mul %m, %m : f64[3]
  return %mean, %squared, %v
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::mt19937_64 random(3);
  const std::vector<Tensor> whole = {RandomTensor({DType::kF64, {4, 3, 2, 2}}, random, -1, 1),
                                     RandomTensor({DType::kF64, {3}}, random, -1, 1),
                                     RandomTensor({DType::kF64, {3}}, random, -1, 1)};
  const PlacementMap placed = {{"data", Placement::Split(0)}, {"model", Placement::Split(3)}};
  std::vector<std::vector<Tensor>> inputs;
  for (int64_t rank = 0; rank < 4; ++rank)
    inputs.push_back({LocalPart(whole[0], placed, kMeshGrid, rank), whole[1], whole[2]});
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  CompileOptions options;
  options.mesh = kMeshGrid;
  const auto results = RunInProcess(*graph, **backend, inputs, options);
  ASSERT_TRUE(results.ok()) << results.status();
  // The mean is over the samples of all ranks along `data`, and over all of their columns.
  for (int64_t channel = 0; channel < 3; ++channel) {
    double mean = 0;
    for (int64_t sample = 0; sample < 4; ++sample) {
      for (int64_t i = 0; i < 4; ++i) mean += whole[0].At((sample * 3 + channel) * 4 + i) / 16;
    }
    for (const std::vector<Tensor>& of_rank : *results) {
      EXPECT_NEAR(of_rank[0].At(channel), mean, 1e-12);
      EXPECT_NEAR(of_rank[1].At(channel), mean * mean, 1e-12);
      EXPECT_GT(of_rank[2].At(channel), 0);
    }
  }
}

// Rank 3 shares no communicator with rank 0 except the world.
TEST(MeshAxes, AFailureReachesRanksOfOtherParts) {
  std::vector<absl::Status> runs(4);
  std::barrier through(4);
  const std::string step = MeshStep(kMeshMlp).ToString();
  const auto all = StatusOfEach(4, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, LoadOnGrid(step, communicator, device));
    const Tensor x = Tensor::Full({DType::kF32, {4, 6}}, 0.5);
    Tensor y({DType::kI64, {4}});
    const std::vector<NamedInput> inputs = {{"x", {x.type(), x.bytes()}}, {"target", {y.type(), y.bytes()}}};
    RETURN_IF_ERROR(executor->Run(inputs, {}));
    through.arrive_and_wait();  // otherwise the error may reach a peer in the previous run
    if (communicator.rank() == 3) y.mutable_data<int64_t>()[1] = 7;
    absl::Status& run = runs[static_cast<size_t>(communicator.rank())];
    run = executor->Run(inputs, {});
    // Ranks 0 and 2 need nothing from the others after the forward pass: they may have completed that run.
    if (run.ok() && communicator.rank() % 2 == 0) run = executor->Run(inputs, {});
    return absl::OkStatus();  // returning the error would make ForEachRank abort
  });
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(all[rank].ok()) << all[rank];
    EXPECT_THAT(MessageOf(runs[rank]), HasSubstr("label 7 at position [1]")) << "rank " << rank;
    EXPECT_TRUE(rank == 3 || MessageOf(runs[rank]).find("rank 3") != std::string::npos) << runs[rank];
  }
}

constexpr char kTwoReductions[] = R"(
mesh {data=2, model=2}
graph @two(%x: f32[4] split(0), %y: f32[4] split(0, model)) -> (a: f32[], b: f32[]) {
  FIRST
  SECOND
  return %a, %b
}
)";

// The ranks' collectives are the same along each axis, but two communicators could deadlock.
TEST(MeshAxes, AnotherOrderOfTheAxesIsRefusedAtLoad) {
  const std::string a =
      "%p = reduce_sum %x {dims=[0]} : f32[] partial(sum)\n  %a = all_reduce %p {axis=data, kind=sum} : f32[]";
  const std::string b =
      "%q = reduce_sum %y {dims=[0]} : f32[] partial(sum, model)\n  %b = all_reduce %q {axis=model, kind=sum} : f32[]";
  const auto all = StatusOfEach(4, [&](Communicator& communicator, Device& device) {
    const bool other = communicator.rank() == 2;
    std::string text = WithAll(kTwoReductions, "FIRST", other ? b : a);
    text = WithAll(text, "SECOND", other ? a : b);
    return LoadOnGrid(text, communicator, device).status();
  });
  for (const absl::Status& status : all) {
    EXPECT_THAT(MessageOf(status), HasSubstr("different versions of the order certificate of @two"));
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("on rank 0: all_reduce sum f32[1] along data"),
                                         HasSubstr("on rank 2: all_reduce sum f32[1] along model")));
  }
}

// --- Replicas -----------------------------------------------------------------------------------------------------

constexpr char kPartsAndReplicas[] = R"(
graph @parts(%x: f32[4] split(0), state %w: f32[6] split(0, model), state %v: f32[2]) -> (s: f32[], t: f32[], %w: f32[6], %v: f32[2]) {
  %s = reduce_sum %x {dims=[0]} : f32[]
  %t = reduce_sum %w {dims=[0]} : f32[]
  return %s, %t, %w, %v
}
)";

// Runs with one value of the state `name` on `rank`, and another on all other ranks. `checks` becomes the results of
// CheckReplicas before the runs.
std::vector<absl::Status> RunWith(const std::string& name, const Tensor& usual, const Tensor& of_one, int rank,
                                  std::vector<absl::Status>& checks) {
  checks.resize(4);
  std::barrier through(4);
  return StatusOfEach(4, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, LoadOnGrid(kPartsAndReplicas, communicator, device));
    const Tensor& value = communicator.rank() == rank ? of_one : usual;
    RETURN_IF_ERROR(executor->AssignState(name, {value.type(), value.bytes()}));
    checks[static_cast<size_t>(communicator.rank())] = CheckReplicas(*executor, communicator);
    through.arrive_and_wait();  // otherwise the error of the run may reach a peer in the check
    const Tensor x({DType::kF32, {2}});
    const std::vector<NamedInput> inputs = {{"x", {x.type(), x.bytes()}}};
    // A rank that agrees with all its peers may complete one run before the others find a difference.
    RETURN_IF_ERROR(executor->Run(inputs, {}));
    return executor->Run(inputs, {});
  });
}

TEST(MeshAxes, PartsOfAStateAreComparedWithTheirReplicasAlone) {
  const Tensor whole = Tensor::Of<float>({6}, {1, 2, 3, 4, 5, 6});
  std::vector<absl::Status> checks;
  // A correct state: two different parts, each on two ranks.
  for (const absl::Status& status : RunWith("w", whole, whole, 3, checks)) EXPECT_TRUE(status.ok()) << status;
  for (const absl::Status& status : checks) EXPECT_TRUE(status.ok()) << status;

  // Rank 3 has a different part; its replica is rank 1, along `data`.
  const Tensor other = Tensor::Of<float>({3}, {4, 5, 7});
  for (const absl::Status& status : RunWith("w", whole, other, 3, checks)) {
    EXPECT_THAT(MessageOf(status), HasSubstr("replicas of the states differ"));
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("rank 1"), HasSubstr("rank 3"), Not(HasSubstr("rank 0 "))));
  }
  for (const absl::Status& status : checks) {
    EXPECT_THAT(MessageOf(status), HasSubstr("state w (f32[3]) differs between rank 1 and rank 3"));
  }
}

// Rank 2 differs along both axes: from rank 0 along `data`, from rank 3 along `model`.
TEST(MeshAxes, AStateThatIsReplicatedOnAllRanksIsComparedAlongEachAxis) {
  std::vector<absl::Status> checks;
  const Tensor usual = Tensor::Of<float>({2}, {1, 2}), other = Tensor::Of<float>({2}, {1, 3});
  for (const absl::Status& status : RunWith("v", usual, other, 2, checks)) {
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("replicas of the states differ"), HasSubstr("rank 2")));
  }
  for (const absl::Status& status : checks) {
    EXPECT_THAT(MessageOf(status), HasSubstr("state v (f32[2]) differs between rank 0 and rank 2"));
  }
}

// Rows of the batch are split along `data` only: ranks 0 and 1 must get the same.
TEST(MeshAxes, AnInputThatDiffersAlongTheAxisThatDoesNotShareItIsFound) {
  const auto all = StatusOfEach(4, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, LoadOnGrid(kPartsAndReplicas, communicator, device));
    const Tensor x = Tensor::Full({DType::kF32, {2}}, communicator.rank() == 1 ? 2 : 1);
    const std::vector<NamedInput> inputs = {{"x", {x.type(), x.bytes()}}};
    RETURN_IF_ERROR(executor->Run(inputs, {}));
    return executor->Run(inputs, {});
  });
  for (const absl::Status& status : all) {
    EXPECT_THAT(MessageOf(status), HasSubstr("inputs that are replicated have different contents"));
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
}

// There is an all_reduce along `data`, and no collective along `model`, where all values are replicated.
constexpr char kQuietModel[] = R"(
graph @quiet(%x: f32[4] split(0), state %v: f32[2]) -> (s: f32[], %v: f32[2]) {
  %s = reduce_sum %x {dims=[0]} : f32[]
  %v1 = add %v, %v : f32[2]
  return %s, %v1
}
)";

// Returns the status of each rank if ranks 1 and 3, which `data` connects, have other values than ranks 0 and 2.
std::vector<absl::Status> RunQuiet(double other_x, double other_v) {
  return StatusOfEach(4, [&](Communicator& communicator, Device& device) -> absl::Status {
    CompileOptions options;
    options.mesh = kMeshGrid;
    options.replicated = true;
    ASSIGN_OR_RETURN(const auto executor, Load(kQuietModel, communicator, device, options));
    for (const std::string& line : executor->executable().certificate.lines) EXPECT_THAT(line, Not(HasSubstr("model")));
    const bool is_other = communicator.rank() % 2 == 1;
    const Tensor v = Tensor::Full({DType::kF32, {2}}, is_other ? other_v : 1);
    RETURN_IF_ERROR(executor->AssignState("v", {v.type(), v.bytes()}));
    const Tensor x = Tensor::Full({DType::kF32, {2}}, is_other ? other_x : 1);
    return executor->Run(std::vector<NamedInput>{{"x", {x.type(), x.bytes()}}}, {});
  });
}

TEST(MeshAxes, AnAxisWithoutCollectivesIsComparedToo) {
  for (const absl::Status& status : RunQuiet(1, 1)) EXPECT_TRUE(status.ok()) << status;
  const auto named = testing::AnyOf(AllOf(HasSubstr("rank 0 on host"), HasSubstr("rank 1 on host")),
                                    AllOf(HasSubstr("rank 2 on host"), HasSubstr("rank 3 on host")));
  for (const absl::Status& status : RunQuiet(2, 1)) {
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("inputs that are replicated have different contents"), named));
  }
  for (const absl::Status& status : RunQuiet(1, 2)) {
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("replicas of the states differ"), named));
  }
}

// --- Basis of the other tests on meshes ------------------------------------------------------------------------------

TEST(MeshAxes, RandomInputsOfReplicasAreEqualAndOthersAreNot) {
  const absl::StatusOr<Graph> graph = ParseGraph(R"(
mesh {data=2, model=2}
local graph @inputs(%all: f32[4,4], %rows: f32[4,4] split(0), %columns: f32[4,4] split(1, model), %both: f32[4,4] split(0) split(1, model), %share: f32[4,4] partial(sum)) -> () {
  return
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto inputs = RandomInputs(*graph);
  ASSERT_EQ(inputs.size(), 4u);
  // By input: for each rank, the first rank that has the same value.
  const std::vector<std::vector<size_t>> first = {{0, 0, 0, 0}, {0, 0, 2, 2}, {0, 1, 0, 1}, {0, 1, 2, 3}, {0, 0, 2, 2}};
  for (size_t i = 0; i < first.size(); ++i) {
    const PlacementMap& placements = graph->inputs()[i].placements();
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(FirstReplica(placements, kMeshGrid, static_cast<int64_t>(rank)), static_cast<int64_t>(first[i][rank]));
      for (size_t other = 0; other < rank; ++other) {
        EXPECT_EQ(inputs[rank][i] == inputs[other][i], first[i][rank] == first[i][other])
            << graph->inputs()[i].name() << " of ranks " << other << " and " << rank;
      }
    }
  }
}

// --- States -------------------------------------------------------------------------------------------------------

// Each rank assigns its slice of a global value and reads it back, and then assigns its slice directly.
void ExpectSlices(const Mesh& mesh, const std::string& placements, const std::vector<Tensor>& expected) {
  SCOPED_TRACE(mesh.ToString() + placements);
  const std::string text = WithAll(
      "graph @keep(%x: f32[4] split(0), state %w: f32[4,2] PLACED) -> (s: f32[], %w: f32[4,2]) {\n"
      "  %s = reduce_sum %x {dims=[0]} : f32[]\n  return %s, %w\n}\n",
      "PLACED", placements);
  const Tensor whole = Tensor::Of<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  const auto all = StatusOfEach(static_cast<int>(mesh.num_ranks()), [&](Communicator& communicator, Device& device) {
    return [&]() -> absl::Status {
      CompileOptions options;
      options.mesh = mesh;
      options.replicated = true;  // along the axis that does not split the state
      ASSIGN_OR_RETURN(const auto executor, Load(text, communicator, device, options));
      const Tensor& mine = expected[static_cast<size_t>(communicator.rank())];
      Tensor found(mine.type());
      RETURN_IF_ERROR(executor->AssignState("w", {whole.type(), whole.bytes()}));
      RETURN_IF_ERROR(executor->ReadState("w", {found.type(), found.mutable_bytes()}));
      EXPECT_EQ(found, mine) << "rank " << communicator.rank();
      const Tensor x(TensorType{DType::kF32, {4 / *mesh.axis_size("data")}});
      RETURN_IF_ERROR(executor->Run(std::vector<NamedInput>{{"x", {x.type(), x.bytes()}}}, {}));
      Tensor slice = Tensor::Full(mine.type(), 1 + communicator.rank());  // not equal to any other rank's
      RETURN_IF_ERROR(executor->AssignState("w", {slice.type(), slice.bytes()}));
      RETURN_IF_ERROR(executor->ReadState("w", {found.type(), found.mutable_bytes()}));
      EXPECT_EQ(found, slice) << "rank " << communicator.rank();
      const Tensor narrow(TensorType{DType::kF32, {4, 3}});
      EXPECT_THAT(MessageOf(executor->AssignState("w", {narrow.type(), narrow.bytes()})),
                  HasSubstr("this rank's share of f32[4,2], found f32[4,3]"));
      return absl::OkStatus();
    }();
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

TEST(MeshAxes, AGlobalValueGivesEachRankItsSliceOfASplitState) {
  const Mesh two({{"data", 2}});
  ExpectSlices(two, "split(0)", {Tensor::Of<float>({2, 2}, {0, 1, 2, 3}), Tensor::Of<float>({2, 2}, {4, 5, 6, 7})});
  ExpectSlices(two, "split(1)", {Tensor::Of<float>({4, 1}, {0, 2, 4, 6}), Tensor::Of<float>({4, 1}, {1, 3, 5, 7})});
  const Tensor even = Tensor::Of<float>({4, 1}, {0, 2, 4, 6}), odd = Tensor::Of<float>({4, 1}, {1, 3, 5, 7});
  ExpectSlices(kMeshGrid, "split(1, model)", {even, odd, even, odd});
  ExpectSlices(kMeshGrid, "split(1)", {even, even, odd, odd});
  ExpectSlices(kMeshGrid, "split(1) split(0, model)",
               {Tensor::Of<float>({2, 1}, {0, 2}), Tensor::Of<float>({2, 1}, {4, 6}), Tensor::Of<float>({2, 1}, {1, 3}),
                Tensor::Of<float>({2, 1}, {5, 7})});
  ExpectSlices(kMeshGrid, "split(0) split(0, model)",  // first along `data`, then each half along `model`
               {Tensor::Of<float>({1, 2}, {0, 1}), Tensor::Of<float>({1, 2}, {2, 3}), Tensor::Of<float>({1, 2}, {4, 5}),
                Tensor::Of<float>({1, 2}, {6, 7})});
}

}  // namespace
}  // namespace lockstep
