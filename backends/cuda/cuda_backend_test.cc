// Programs of the cuda backend on the fake driver and libraries. Their kernels are those of a GPU, compiled for the
// host.

#include "backends/cuda/cuda_backend.h"

#include <cmath>

#include "backends/compile.h"
#include "core/interpreter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/load.h"
#include "test/fake_cuda/run.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

using cuda::RunOnFake;

Graph Parse(const std::string& text) { return cuda::ParseForTest(text); }
std::vector<Tensor> Inputs(const Graph& graph) { return cuda::InputsForTest(graph); }

void ExpectAgrees(const std::string& text, double tolerance = 1e-5) {
  const Graph graph = Parse(text);
  const std::vector<Tensor> inputs = Inputs(graph);
  const absl::StatusOr<std::vector<Tensor>> found = RunOnFake(graph, inputs),
                                            expected = InterpretOneRank(graph, inputs);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (size_t i = 0; i < expected->size(); ++i) {
    for (int64_t at = 0; at < (*expected)[i].num_elements(); ++at) {
      const double e = (*expected)[i].At(at);
      ASSERT_NEAR((*found)[i].At(at), e, tolerance * std::max(1.0, std::abs(e))) << "result " << i << " at " << at;
    }
  }
}

TEST(CudaBackend, Loops) {
  ExpectAgrees(R"(graph @f(%x: f32[64,130]) -> (y: f32[64,130], m: f32[130]) {
    %e = tanh %x : f32[64,130]
    %y = mul %e, %x : f32[64,130]
    %m = reduce_max %y {dims=[0]} : f32[130]
    return %y, %m
  })");
  ExpectAgrees(R"(graph @f(%x: f32[64,130]) -> (y: f32[64,130]) {
    %y = softmax %x {dim=1} : f32[64,130]
    return %y
  })");
}

TEST(CudaBackend, SumsOfManyAreCutIntoChunks) {
  ExpectAgrees(R"(graph @f(%x: f32[50000]) -> (y: f32[]) {
    %y = reduce_sum %x {dims=[0]} : f32[]
    return %y
  })");
}

TEST(CudaBackend, MatrixProducts) {
  for (const char* attributes :
       {"{}", "{transpose_b=true}", "{transpose_a=true}", "{transpose_a=true, transpose_b=true}"}) {
    const bool a = std::string(attributes).find("_a") != std::string::npos;
    const bool b = std::string(attributes).find("_b") != std::string::npos;
    ExpectAgrees(std::string("graph @f(%x: f32[") + (a ? "5,3" : "3,5") + "], %y: f32[" + (b ? "7,5" : "5,7") +
                 "]) -> (z: f32[3,7]) {\n %z = matmul %x, %y " + attributes + " : f32[3,7]\n return %z\n}");
  }
  ExpectAgrees(R"(graph @f(%x: f64[4,3,5], %y: f64[4,5,2]) -> (z: f64[4,3,2]) {
    %z = matmul %x, %y : f64[4,3,2]
    return %z
  })");
  ExpectAgrees(R"(graph @f(%x: i32[4,3,5], %y: i32[4,2,5]) -> (z: i32[4,3,2]) {
    %z = matmul %x, %y {transpose_b=true} : i32[4,3,2]
    return %z
  })");
}

TEST(CudaBackend, ATrainingStepUpdatesItsStates) {
  ExpectAgrees(R"(graph @step(%x: f32[16,20], %y: i64[16], state %w: f32[20,3]) -> (loss: f32[], %w: f32[20,3]) {
    %z = matmul %x, %w : f32[16,3]
    %loss, %dz = softmax_cross_entropy %z, %y {scale=1/16} : f32[], f32[16,3]
    %dw = matmul %x, %dz {transpose_a=true} : f32[20,3]
    %w.next = sgd %w, %dw {learning_rate=0.1} : f32[20,3]
    return %loss, %w.next
  })");
}

// The kernel finds the error, and the end of the step reports it.
TEST(CudaBackend, ALabelOutOfRangeIsAnErrorThatNamesIt) {
  const Graph graph = Parse(R"(graph @f(%z: f32[16,3], %y: i64[16]) -> (loss: f32[]) {
    %loss, %dz = softmax_cross_entropy %z, %y {scale=1/16} : f32[], f32[16,3] @"onnx:/loss"
    return %loss
  })");
  std::vector<Tensor> inputs = Inputs(graph);
  inputs[1].mutable_data<int64_t>()[7] = 3;
  const absl::Status status = RunOnFake(graph, inputs).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("softmax_cross_entropy (C5): a label (the loss has no ignore_index) is outside [0, 3), at onnx:/loss"));
}

TEST(CudaBackend, AnIntegerDividedByZeroIsAnError) {
  const Graph graph = Parse(R"(graph @f(%x: i32[100], %y: i32[100]) -> (z: i32[100]) {
    %z = div %x, %y : i32[100] @"onnx:/Div"
    return %z
  })");
  const absl::Status status = RunOnFake(graph, Inputs(graph)).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("div: integer division by zero, at onnx:/Div"));
}

TEST(CudaBackend, GpusBeforeAmpereAreRefusedByName) {
  const cuda::LoadedFakeDriver fake = cuda::LoadFakeDriver({.capability = 75});
  const absl::Status status = CreateCudaBackend()->MakeTarget({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "Fake GPU has compute capability 7.5; 8.0 (Ampere) or later is needed");
}

// By the throughput of f64 in NVIDIA's programming guide.
TEST(CudaBackend, GpusWithASlowF64SumInPairsOfF32) {
  for (const auto& [capability, slow] :
       {std::pair(80, false), {86, true}, {89, true}, {90, false}, {100, false}, {103, true}, {120, true}}) {
    const cuda::LoadedFakeDriver fake = cuda::LoadFakeDriver({.capability = capability});
    const absl::StatusOr<Target> target = CreateCudaBackend()->MakeTarget({});
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(target->gpu->slow_f64, slow) << capability;
    EXPECT_EQ(target->grid.sums_in_pairs, slow) << capability;
  }
  for (const auto& [isa, slow] : {std::pair("h200", false), {"a100", false}, {"l40s", true}}) {
    const absl::StatusOr<Target> target = CreateCudaBackend()->MakeTarget({.isa = isa});
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(target->grid.sums_in_pairs, slow) << isa;
  }
}

// The second pass over x is a loop of its own.
TEST(CudaBackend, StatisticsTakeOnePassWhereF64IsFast) {
  const Graph graph = Parse(R"(graph @f(%x: f32[64,32,8,8], %s: f32[32], %b: f32[32]) -> (y: f32[64,32,8,8]) {
    %y, %m, %v = batch_norm_training %x, %s, %b {epsilon=1e-05} : f32[64,32,8,8], f32[32], f32[32]
    return %y
  })");
  for (const auto& [isa, loops] : {std::pair("h200", 2), {"l40s", 3}}) {
    CompileOptions options;
    options.isa = isa;
    const absl::StatusOr<Executable> executable = Compile(graph.Clone(), *CreateCudaBackend(), options);
    ASSERT_TRUE(executable.ok()) << executable.status();
    EXPECT_EQ(executable->steps.size(), loops) << executable->ToString();
  }
}

// LLVM 19 does not support GPUs after Hopper; its code for Hopper runs on them.
TEST(CudaBackend, CompilesForGpusThatAreLaterThanLlvm) {
  for (const auto& [capability, name] : {std::pair(100, "sm_100"), std::pair(120, "sm_120")}) {
    const cuda::LoadedFakeDriver fake = cuda::LoadFakeDriver({.capability = capability});
    const std::unique_ptr<Backend> backend = CreateCudaBackend();
    const absl::StatusOr<Target> target = backend->MakeTarget({});
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(target->gpu->architecture, name);
    EXPECT_EQ(target->gpu->capability, capability);
    const Graph graph = Parse(R"(graph @f(%x: f32[64,64], %w: f32[64,64]) -> (y: f32[64,64]) {
      %z = matmul %x, %w : f32[64,64]
      %y = tanh %z : f32[64,64]
      return %y
    })");
    const absl::StatusOr<Executable> executable = Compile(graph.Clone(), *backend, {});
    ASSERT_TRUE(executable.ok()) << executable.status();
    uint64_t workspace = 0;
    for (const auto& step : executable->steps) {
      if (step->info().name.starts_with("cublaslt.")) workspace = step->info().scratch.bytes;
    }
    EXPECT_EQ(workspace, uint64_t{32} << 20) << "what NVIDIA advises for Hopper and later";
  }
}

}  // namespace
}  // namespace lockstep
