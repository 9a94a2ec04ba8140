// A program as a CUDA graph, on the fakes. It computes the same as step by step, on one rank and on several, and a
// failure of the capture does not fail the run.

#include "backends/cuda/captured_steps.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backends/compile.h"
#include "backends/run_in_process.h"
#include "core/check.h"
#include "core/local_part.h"
#include "core/printer.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"
#include "runtime/execution/executor.h"
#include "test/fake_cuda/fake_backend.h"
#include "test/fake_cuda/load.h"

namespace lockstep::cuda {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRuns = 5;

// With `splits_weights`, the hidden units are split along the axis `model`.
Graph MlpStep(bool splits_weights = false) {
  const std::string w = splits_weights ? " split(1, model)" : "", u = splits_weights ? " split(0, model)" : "";
  absl::StatusOr<Graph> graph = ParseGraph("graph @mlp(%x: f32[12,6] split(0), state %w: f32[6,10]" + w +
                                           ", state %u: f32[10,5]" + u + ") -> (logits: f32[12,5]) {" + R"(
  %z = matmul %x, %w : f32[12,10]
  %h = tanh %z : f32[12,10]
  %logits = matmul %h, %u : f32[12,5]
  return %logits
}
)");
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  passes::TrainStepSpec spec;
  spec.optimizer = {"SGD", {{"learning_rate", 0.3}, {"momentum", 0.9}}};
  const absl::Status status = passes::MakeTrainStep(*graph, spec);
  LOCKSTEP_CHECK(status.ok()) << status;
  return *std::move(graph);
}

Tensor Values(const TensorType& type, int salt) {
  Tensor tensor(type);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (type.dtype == DType::kI64) tensor.mutable_data<int64_t>()[i] = (i + salt) % 5;
    else tensor.mutable_data<float>()[i] = static_cast<float>((i * 7 + salt * 3) % 11 - 5) / 8;
  }
  return tensor;
}

int64_t Count(const std::string& begin) {
  const std::vector<std::string> calls = TheFakeDriver().calls();
  return std::count_if(calls.begin(), calls.end(), [&](const std::string& call) { return call.rfind(begin, 0) == 0; });
}

// For the end of a test: everything was used correctly and freed.
void ExpectNothingLeft() {
  EXPECT_THAT(TheFakeDriver().misuse(), IsEmpty());
  EXPECT_THAT(TheFakeDriver().leaks(), IsEmpty());
}

// Returns the losses of all runs, for each rank. `ahead` runs are started before one is waited for.
absl::StatusOr<std::vector<std::vector<float>>> Train(const Backend& backend, const Mesh& mesh, bool profile,
                                                      int ahead = 0) {
  const Graph graph = MlpStep(/*splits_weights=*/mesh.axes().size() > 1);
  const auto ranks = static_cast<int>(mesh.num_ranks());
  std::vector<std::vector<float>> losses(static_cast<size_t>(ranks));
  CompileOptions options;
  options.mesh = mesh;
  options.replicated = true;
  RETURN_IF_ERROR(ForEachRank(ranks, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankDevice opened, backend.OpenDevice(world));
    ASSIGN_OR_RETURN(Executable executable, Compile(graph.Clone(), backend, options));
    ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), opened.communicator,
                                                         opened.device.get(), {.profile = profile}));
    const Executable& loaded = executor->executable();
    for (const ValueInfo& state : loaded.states) {
      const Tensor value = LocalPart(Values(state.global_type, 1), state.placements, mesh, world.rank());
      RETURN_IF_ERROR(executor->AssignState(state.name, {value.type(), value.bytes()}));
    }
    std::vector<float>& found = losses[static_cast<size_t>(world.rank())];
    found.assign(kRuns, -1);
    for (int run = 0; run < kRuns; ++run) {
      std::vector<Tensor> parts;
      std::vector<NamedInput> inputs;
      parts.reserve(loaded.inputs.size());
      for (const ValueInfo& input : loaded.inputs) {
        const Tensor& part =
            parts.emplace_back(LocalPart(Values(input.global_type, run), input.placements, options.mesh, world.rank()));
        inputs.push_back({input.name, {part.type(), part.bytes()}});
      }
      const std::vector<NamedResult> results = {{"loss", {{DType::kF32, {}}, &found[static_cast<size_t>(run)]}}};
      ASSIGN_OR_RETURN(const int64_t call, executor->Start(inputs, results));
      if (ahead > 0) {
        EXPECT_EQ(executor->IsUnderWay(call), !profile) << run;
      }
      if (run >= ahead) RETURN_IF_ERROR(executor->Wait(call - ahead));
    }
    RETURN_IF_ERROR(executor->Wait(kRuns));
    return absl::OkStatus();
  }));
  return losses;
}
absl::StatusOr<std::vector<std::vector<float>>> Train(const Backend& backend, int ranks, bool profile, int ahead = 0) {
  return Train(backend, Mesh({{"data", ranks}}), profile, ahead);
}

class Captured : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Captured, testing::Values(1, 2, 3));

TEST_P(Captured, ComputesWhatTheStepsDo) {
  const int ranks = GetParam();
  const auto backend = CreateFakeCudaBackend();
  const auto expected = Train(*backend, ranks, /*profile=*/true);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(Count("cuGraphLaunch"), 0) << "step by step where each step is to have its time";
  const int64_t kernels = Count("cuLaunchKernel");
  const auto found = Train(*backend, ranks, /*profile=*/false);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, *expected);
  EXPECT_NE((*found)[0][1], (*found)[0][4]) << "nothing was learnt";
  EXPECT_EQ(Count("cuGraphLaunch"), ranks * (kRuns - 1));
  EXPECT_EQ((Count("cuLaunchKernel") - kernels) * kRuns, kernels * 2) << "once each in the first run and the capture";
  ExpectNothingLeft();
}

// The graph of the previous run is still in the stream; during the capture, so are the steps of the first run.
TEST_P(Captured, ComputesTheSameWhenRunsAreUnderWay) {
  const int ranks = GetParam();
  const auto backend = CreateFakeCudaBackend();
  const auto expected = Train(*backend, ranks, /*profile=*/true, /*ahead=*/1);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (int ahead : {1, 2}) {
    const auto found = Train(*backend, ranks, /*profile=*/false, ahead);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, *expected);
  }
  EXPECT_EQ(Count("cuGraphLaunch"), 2 * ranks * (kRuns - 1));
  ExpectNothingLeft();
}

// The capture fails on one rank: all ranks continue step by step.
TEST_P(Captured, AFailureInTheCaptureIsNotOneOfTheRun) {
  const int ranks = GetParam();
  for (const char* function : {"cuGraphInstantiateWithFlags", "cuStreamBeginCapture"}) {
    const auto backend = CreateFakeCudaBackend();
    const auto expected = Train(*backend, ranks, /*profile=*/true);
    ASSERT_TRUE(expected.ok()) << expected.status();
    TheFakeDriver().FailCall(function, 1, CUDA_ERROR_NOT_SUPPORTED);
    testing::internal::CaptureStderr();
    const auto found = Train(*backend, ranks, /*profile=*/false);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("runs step by step"));
    ASSERT_TRUE(found.ok()) << function << ": " << found.status();
    EXPECT_EQ(*found, *expected);
    EXPECT_EQ(Count("cuGraphLaunch"), 0);
    ExpectNothingLeft();
  }
}

// The collectives of both axes are in one order on all ranks, in the steps and in the graph: with another order on one
// rank, the fake NCCL hangs, as NVIDIA's may.
TEST(CapturedSteps, ComputesWhatTheStepsDoOnTwoAxes) {
  const Mesh mesh({{"data", 2}, {"model", 2}});
  const auto backend = CreateFakeCudaBackend();
  const auto expected = Train(*backend, mesh, /*profile=*/true);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (int ahead : {0, 2}) {
    const auto found = Train(*backend, mesh, /*profile=*/false, ahead);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, *expected);
  }
  EXPECT_EQ(Count("cuGraphLaunch"), 2 * 4 * (kRuns - 1));
  ExpectNothingLeft();
}

// Each axis has its own communicator, which cannot see that the order of its collective and one along another axis
// differs between ranks. The certificate has the order over all axes.
TEST(RankDevice, AnotherOrderAlongTwoAxesIsRefused) {
  const auto backend = CreateFakeCudaBackend();
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}, {"model", 2}});
  options.replicated = true;
  std::vector<absl::Status> all;
  (void)ForEachRank(
      4,
      [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
        const std::string of_data = "  %a = reduce_sum %x {dims=[0]} : f32[6]\n",
                          of_model = "  %b = reduce_sum %y {dims=[0]} : f32[6]\n";
        ASSIGN_OR_RETURN(
            Graph graph,
            ParseGraph(
                "graph @sums(%x: f32[4,6] split(0), %y: f32[4,6] split(0, model)) -> (a: f32[6], b: f32[6]) {\n" +
                (world.rank() == 2 ? of_model + of_data : of_data + of_model) + "  return %a, %b\n}\n"));
        ASSIGN_OR_RETURN(Executable executable, Compile(std::move(graph), *backend, options));
        return Executor::Load(std::move(executable), opened.communicator, opened.device.get()).status();
      },
      &all);
  for (const absl::Status& status : all) {
    // A rank finds it, or hears from another rank that it gave up for this reason.
    EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("along data"), HasSubstr("along model")));
  }
  ExpectNothingLeft();
}

// The failure on one rank is passed along all axes: no rank launches a graph that its peers do not launch.
TEST(CapturedSteps, AFailureInTheCaptureIsThatOfAllAxes) {
  const Mesh mesh({{"data", 2}, {"model", 2}});
  for (const char* function : {"cuGraphInstantiateWithFlags", "cuStreamBeginCapture"}) {
    const auto backend = CreateFakeCudaBackend();
    const auto expected = Train(*backend, mesh, /*profile=*/true);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_NE((*expected)[0][1], (*expected)[0][4]) << "nothing was learnt";
    TheFakeDriver().FailCall(function, 1, CUDA_ERROR_NOT_SUPPORTED);
    testing::internal::CaptureStderr();
    const auto found = Train(*backend, mesh, /*profile=*/false);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("runs step by step"));
    ASSERT_TRUE(found.ok()) << function << ": " << found.status();
    EXPECT_EQ(*found, *expected);
    EXPECT_EQ(Count("cuGraphLaunch"), 0);
    ExpectNothingLeft();
  }
}

// A run that fails does not count as the first, step-by-step run: the next run is the first.
TEST(CapturedSteps, TheFirstRunIsOneThatSucceeds) {
  const auto backend = CreateFakeCudaBackend();
  const absl::Status status = ForEachRank(1, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
    CompileOptions options;
    options.mesh = Mesh({{"data", 1}});
    ASSIGN_OR_RETURN(Executable executable, Compile(MlpStep(), *backend, options));
    ASSIGN_OR_RETURN(const auto executor,
                     Executor::Load(std::move(executable), opened.communicator, opened.device.get()));
    std::vector<Tensor> values;
    std::vector<NamedInput> inputs;
    values.reserve(executor->executable().inputs.size());
    for (const ValueInfo& input : executor->executable().inputs) {
      const Tensor& value = values.emplace_back(Values(input.local_type, 1));
      inputs.push_back({input.name, {value.type(), value.bytes()}});
    }
    TheFakeDriver().FailCall("cuLaunchKernel", 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_THAT(std::string(executor->Run(inputs, {}).message()), HasSubstr("cuLaunchKernel"));
    // If a program runs as a whole, it is unknown which steps were executed.
    EXPECT_THAT(std::string(executor->CheckUsable().message()), HasSubstr("assign the states"));
    for (const ValueInfo& state : executor->executable().states) {
      const Tensor value = Values(state.local_type, 1);
      RETURN_IF_ERROR(executor->AssignState(state.name, {value.type(), value.bytes()}));
    }
    for (int run = 0; run < 3; ++run) RETURN_IF_ERROR(executor->Run(inputs, {}));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Count("cuGraphLaunch"), 2);
}

// Ranks that differ are also named if they run a graph, in which calls are not compared one by one.
TEST(CapturedSteps, RanksThatPartAreNamed) {
  const auto backend = CreateFakeCudaBackend();
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  std::vector<absl::Status> all;
  (void)ForEachRank(
      2,
      [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
        EXPECT_EQ(opened.communicator->transport(), "nccl");
        ASSIGN_OR_RETURN(Executable executable, Compile(MlpStep(), *backend, options));
        ASSIGN_OR_RETURN(const auto executor,
                         Executor::Load(std::move(executable), opened.communicator, opened.device.get()));
        std::vector<Tensor> parts;
        std::vector<NamedInput> inputs;
        parts.reserve(executor->executable().inputs.size());
        for (const ValueInfo& input : executor->executable().inputs) {
          const Tensor& part = parts.emplace_back(Values(input.local_type, 1));
          inputs.push_back({input.name, {part.type(), part.bytes()}});
        }
        for (int run = 0; run < 3; ++run) RETURN_IF_ERROR(executor->Run(inputs, {}));
        const ValueInfo& state = executor->executable().states[0];
        const Tensor value = Values(state.local_type, 2);
        if (world.rank() == 1) RETURN_IF_ERROR(executor->AssignState(state.name, {value.type(), value.bytes()}));
        return executor->Run(inputs, {});
      },
      &all);
  EXPECT_GE(Count("cuGraphLaunch"), 4);
  for (const absl::Status& status : all) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("different states were assigned on them"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("the collectives of a CUDA graph"));
  }
  EXPECT_THAT(TheFakeDriver().misuse(), IsEmpty())
      << "the failure aborts communicators whose collectives are in graphs";
}

// A program without collectives has one in which ranks compare their states. It is waited for before the graph begins,
// so that the states of ranks that differ do not change.
TEST(CapturedSteps, RanksThatPartAreNamedBeforeAnythingIsUpdated) {
  const auto backend = CreateFakeCudaBackend();
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  options.replicated = true;
  (void)ForEachRank(2, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
    ASSIGN_OR_RETURN(Graph graph, ParseGraph(R"(
graph @halve(state %w: f32[4]) -> (%w: f32[4]) {
  %c = constant {value=dense<f32[]: 0.5>} : f32[]
  %half = broadcast %c {dims=[], shape=[4]} : f32[4]
  %w1 = mul %w, %half : f32[4]
  return %w1
}
)"));
    ASSIGN_OR_RETURN(Executable executable, Compile(std::move(graph), *backend, options));
    ASSIGN_OR_RETURN(const auto executor,
                     Executor::Load(std::move(executable), opened.communicator, opened.device.get()));
    const TensorType type{DType::kF32, {4}};
    Tensor w = Tensor::Full(type, 8);
    RETURN_IF_ERROR(executor->AssignState("w", {type, w.bytes()}));
    for (int run = 0; run < 3; ++run) RETURN_IF_ERROR(executor->Run({}, {}));
    w = Tensor::Full(type, 5 + world.rank());
    RETURN_IF_ERROR(executor->AssignState("w", {type, w.bytes()}));
    EXPECT_THAT(std::string(executor->Run({}, {}).message()), HasSubstr("replicas of the states differ"));
    RETURN_IF_ERROR(executor->CheckUsable());
    RETURN_IF_ERROR(executor->ReadState("w", {type, w.mutable_bytes()}));
    EXPECT_EQ(w.At(0), 5 + world.rank());
    return absl::OkStatus();
  });
  EXPECT_EQ(Count("cuGraphLaunch"), 4) << "two runs of two ranks";
}

// Ranks that are threads of one process and share a GPU. Sums of two values are the same with NCCL and through the
// host.
TEST(RankDevice, ThreadsThatShareAGpuComputeTheSame) {
  const auto expected = Train(*CreateFakeCudaBackend(), 2, /*profile=*/false);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto found = Train(*CreateFakeCudaBackend(/*gpus=*/1), 2, /*profile=*/false);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, *expected);
}

// The assignment frees the old members: first the communicator, which frees memory and events of the device. Ranks
// share a GPU, whose context the other rank keeps, and communicate through the host; or each has its own GPU, and they
// use NCCL.
TEST(RankDevice, AnAssignmentDestroysTheCommunicatorBeforeItsDevice) {
  for (const int gpus : {1, 2}) {
    const auto backend = CreateFakeCudaBackend(gpus);
    const absl::Status status = ForEachRank(2, [&](Communicator& world) -> absl::Status {
      ASSIGN_OR_RETURN(RankDevice opened, backend->OpenDevice(world));
      EXPECT_EQ(opened.communicator->transport(), gpus == 1 ? "in_process via host" : "nccl");
      for (int time = 0; time < 2; ++time) {
        ASSIGN_OR_RETURN(auto x, opened.device->Allocate(64, "x"));
        RETURN_IF_ERROR(opened.communicator->Run(Collective::AllReduce(16, DType::kF32, ReduceKind::kSum), x->data(),
                                                 x->data(), {.label = "x", .stream = opened.device->stream()}));
        RETURN_IF_ERROR(opened.device->Synchronize());
        x.reset();
        RETURN_IF_ERROR(world.Barrier("both are done"));
        if (time == 0) {
          ASSIGN_OR_RETURN(opened, backend->OpenDevice(world));
        } else {
          opened = {};
        }
      }
      EXPECT_EQ(opened.device, nullptr);
      EXPECT_EQ(opened.communicator, nullptr);
      return world.Barrier("both have given back");
    });
    EXPECT_TRUE(status.ok()) << status;
    ExpectNothingLeft();
    EXPECT_EQ(TheFakeNccl().live(), 0);
  }
}

// Programs of one process run one after the other.
TEST(RankDevice, ContextsAreKeptForTheNextProgram) {
  {
    KeptContexts contexts;
    const auto backend = CreateFakeCudaBackend(/*gpus=*/1, &contexts);
    const Graph graph = MlpStep();
    for (int time = 0; time < 3; ++time) {
      const absl::Status status = ForEachRank(2, [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
        CompileOptions options;
        options.mesh = Mesh({{"data", 2}});
        ASSIGN_OR_RETURN(Executable executable, Compile(graph.Clone(), *backend, options));
        return Executor::Load(std::move(executable), opened.communicator, opened.device.get()).status();
      });
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(TheFakeDriver().used(0), 0u) << "nothing waits for the context's end";
    }
    EXPECT_EQ(TheFakeDriver().contexts_made(), 1);
  }
  ExpectNothingLeft();
}

// A program says which of its buckets NCCL has not registered, and why.
TEST(RankDevice, BucketsThatAreNotRegistered) {
  const auto backend = CreateFakeCudaBackend(/*gpus=*/2);
  const Graph graph = MlpStep();
  for (const bool may : {true, false}) {
    TheFakeNccl().LetBuffersBeRegistered(may);
    const absl::Status status = ForEachRank(2, [&](Communicator& world) -> absl::Status {
      ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
      CompileOptions options;
      options.mesh = Mesh({{"data", 2}});
      ASSIGN_OR_RETURN(Executable executable, Compile(graph.Clone(), *backend, options));
      ASSIGN_OR_RETURN(const auto executor,
                       Executor::Load(std::move(executable), opened.communicator, opened.device.get()));
      EXPECT_GT(executor->executable().BytesOf(BufferKind::kRegistered), 0u);
      if (may) {
        EXPECT_THAT(executor->unregistered(), testing::IsEmpty());
      } else {
        EXPECT_THAT(executor->unregistered(),
                    testing::ElementsAre(testing::Pair(HasSubstr("bucket"), HasSubstr("registers nothing"))));
      }
      return world.Barrier("both have looked");
    });
    EXPECT_TRUE(status.ok()) << status;
  }
  TheFakeNccl().LetBuffersBeRegistered(true);
}

// Only NCCL knows if its version allows several ranks on one GPU: if the user asks for it, it is tried.
TEST(RankDevice, NcclIsAskedWhetherRanksMayShareAGpu) {
  const auto backend = CreateFakeCudaBackend(/*gpus=*/1);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  for (const bool may : {false, true}) {
    TheFakeNccl().LetRanksShareGpus(may);
    testing::internal::CaptureStderr();
    const absl::Status status = ForEachRank(2, [&](Communicator& world) -> absl::Status {
      ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
      EXPECT_EQ(opened.communicator->transport(), may ? "nccl" : "in_process via host");
      return opened.communicator->Barrier("both are there");
    });
    EXPECT_TRUE(status.ok()) << status;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, may ? testing::IsEmpty()
                          : testing::Matcher<std::string>(
                                testing::AllOf(HasSubstr("NCCL 2.27.3 refuses ranks that share a GPU"),
                                               HasSubstr("ncclCommInitRankConfig: an error of the fake NCCL (5)"))));
    EXPECT_EQ(TheFakeNccl().live(), 0);
  }
  TheFakeNccl().LetRanksShareGpus(false);
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

// There are eight GPUs, so two of nine ranks share one.
TEST(RankDevice, GpusThatAreSharedTalkByTheHost) {
  const auto backend = CreateFakeCudaBackend();
  testing::internal::CaptureStderr();
  const absl::Status status = ForEachRank(9, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
    EXPECT_EQ(opened.communicator->transport(), "in_process via host");
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("and rank 8 share a GPU"));
}

}  // namespace
}  // namespace lockstep::cuda
