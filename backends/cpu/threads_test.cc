// Kernels run with the number of threads that they were compiled for, regardless of OpenMP's setting on the calling
// thread, and do not change that setting.

#include <omp.h>

#include <filesystem>
#include <thread>

#include "backends/executor_test_support.h"
#include "backends/run_in_process.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"

namespace lockstep {
namespace {

// Convolutions, pooling, a matrix product and their gradients with oneDNN, and loops with LLVM, each large enough for
// several threads.
constexpr char kModel[] = R"(
graph @model(%x: f32[16,3,32,32] split(0), state %k1: f32[32,3,3,3], state %k2: f32[32,32,3,3], state %w: f32[8192,10]) -> (logits: f32[16,10] split(0)) {
  %z1 = convolution %x, %k1 {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : f32[16,32,32,32]
  %a1 = tanh %z1 : f32[16,32,32,32]
  %z2 = convolution %a1, %k2 {dilation=[1,1], padding_high=[1,1], padding_low=[1,1], stride=[1,1]} : f32[16,32,32,32]
  %p2 = max_pool %z2 {dilation=[1,1], padding_high=[0,0], padding_low=[0,0], stride=[2,2], window=[2,2]} : f32[16,32,16,16]
  %a2 = tanh %p2 : f32[16,32,16,16]
  %f = reshape %a2 {shape=[16,8192]} : f32[16,8192]
  %logits = matmul %f, %w : f32[16,10]
  return %logits
}
)";

size_t NumThreadsOfProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// Runs a training step on a new thread whose OpenMP setting is 4, and returns the number of threads that this added to
// the process.
size_t ThreadsAddedBy(int threads) {
  size_t added = 0;
  std::thread([&] {
    omp_set_num_threads(4);
    const auto backend = CreateBackend("cpu");
    absl::StatusOr<Graph> graph = ParseGraph(kModel);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const absl::Status made = passes::MakeTrainStep(*graph, {});
    ASSERT_TRUE(made.ok()) << made;
    const size_t before = NumThreadsOfProcess();
    const absl::Status status = ForEachRank(1, [&](Communicator& communicator) -> absl::Status {
      omp_set_num_threads(4);
      CompileOptions options;
      options.threads = threads;
      ASSIGN_OR_RETURN(const RankDevice opened, (*backend)->OpenDevice(communicator));
      ASSIGN_OR_RETURN(Executable executable, Compile(graph->Clone(), **backend, options));
      EXPECT_EQ(omp_get_max_threads(), 4);
      ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), &communicator, opened.device.get()));
      std::vector<Tensor> inputs;
      for (const Input& input : graph->inputs()) inputs.push_back(Tensor::Full(input.value.type(), 1));
      RETURN_IF_ERROR(RunOnce(*executor, *graph, inputs).status());
      EXPECT_EQ(omp_get_max_threads(), 4);
      added = NumThreadsOfProcess() - before - 1;  // without the rank's own
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }).join();
  return added;
}

// With three or more, the count would depend on the last team: GNU's OpenMP ends threads that a smaller team does not
// use.
TEST(Threads, AreAsManyAsKernelsWereMadeFor) {
  EXPECT_EQ(ThreadsAddedBy(1), 0u);
  EXPECT_EQ(ThreadsAddedBy(2), 1u);
}

TEST(Threads, OfTheCallerAreRestoredByACallThatFails) {
  const auto all = StatusOfEach(1, [](Communicator& communicator, Device& device) -> absl::Status {
    CompileOptions options;
    options.threads = 2;
    omp_set_num_threads(3);
    ASSIGN_OR_RETURN(const auto executor, Load(kStep, communicator, device, options));
    Batch bad(4);
    bad.y.mutable_data<int64_t>()[1] = 5;  // there are 5 classes
    EXPECT_FALSE(executor->Run(bad.inputs(), {}).ok());
    EXPECT_EQ(omp_get_max_threads(), 3);
    return absl::OkStatus();
  });
  EXPECT_TRUE(all[0].ok()) << all[0];
}

TEST(Threads, OfATargetAreAtLeastOne) {
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->MakeTarget({.threads = 0, .isa = ""}).status().message(), "threads is 0, expected at least 1");
}

}  // namespace
}  // namespace lockstep
