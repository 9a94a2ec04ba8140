// The loading of a program on the fakes: it does all that the first run needs, and its errors name the op.

#include "backends/cuda/preparation.h"

#include <chrono>

#include "backends/compile.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/run_in_process.h"
#include "core/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/grid_images.h"
#include "test/fake_cuda/kernel_texts.h"
#include "test/fake_cuda/load.h"
#include "test/fake_cuda/run.h"

namespace lockstep::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Property;
using ::testing::StartsWith;

// Three loops that no pass merges, a product, and kernels of a family.
constexpr char kText[] = R"(graph @f(%x: f32[6,40] split(0), %w: f32[40,7], %i: i64[9]) -> (y: f32[9,7], m: f32[]) {
  %t = tanh %x : f32[6,40] @"onnx:/tanh"
  %z = matmul %t, %w : f32[6,7] @"onnx:/fc/MatMul"
  %s = softmax %z {dim=1} : f32[6,7] @"onnx:/softmax"
  %y = gather %s, %i {dim=0} : f32[9,7] @"onnx:/gather"
  %m = reduce_sum %s {dims=[0,1]} : f32[] @"onnx:/sum"
  return %y, %m
})";

constexpr char kConvolution[] = R"(graph @f(%x: f32[2,1,5,5] split(0), %w: f32[1,1,3,3]) -> (y: f32[2,1,3,3]) {
  %y = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1], groups=1} : f32[2,1,3,3] @"onnx:/conv"
  return %y
})";

// The same problem twice.
constexpr char kConvolutions[] =
    R"(graph @f(%x: f32[2,1,5,5] split(0), %z: f32[2,1,5,5] split(0), %w: f32[1,1,3,3]) -> (y: f32[2,1,3,3], v: f32[2,1,3,3]) {
  %y = convolution %x, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1], groups=1} : f32[2,1,3,3]
  %v = convolution %z, %w {stride=[1, 1], padding_low=[0, 0], padding_high=[0, 0], dilation=[1, 1], groups=1} : f32[2,1,3,3]
  return %y, %v
})";

class PreparationTest : public ::testing::Test {
 protected:
  // Loads a text on a rank of a world, without running it.
  static absl::Status Load(const Backend& backend, Communicator& world, const char* text) {
    ASSIGN_OR_RETURN(const RankDevice opened, backend.OpenDevice(world));
    CompileOptions options;
    options.mesh = Mesh({{"data", world.size()}});
    options.isa = "h200";
    options.replicated = true;
    ASSIGN_OR_RETURN(Executable executable, Compile(ParseForTest(text), backend, options));
    return Executor::Load(std::move(executable), opened.communicator, opened.device.get()).status();
  }
  // Returns the status of each rank of a world.
  std::vector<absl::Status> LoadOn(int ranks, const char* text = kText) {
    std::vector<absl::Status> all;
    (void)ForEachRank(ranks, [&](Communicator& world) { return Load(*backend_, world, text); }, &all);
    return all;
  }
  static std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

  const std::unique_ptr<Backend> backend_ = CreateCudaBackend(FakeGridImages(), FakeKernelTexts());
};

// On several ranks each library has run every problem once when a program is loaded, before a collective can be in
// flight; on one rank there is none.
TEST_F(PreparationTest, LibrariesHaveRunWhenSeveralRanksHaveLoaded) {
  LoadFakeDriver({.gpus = 2});
  for (const auto& [text, matmuls, convolutions] :
       {std::tuple(kText, 1, 0), std::tuple(kConvolution, 0, 1), std::tuple(kConvolutions, 0, 1)}) {
    for (const int ranks : {1, 2}) {
      TheFakeCublasLt().TakeCalls();
      TheFakeCudnn().TakeCalls();
      EXPECT_THAT(LoadOn(ranks, text), ::testing::Each(absl::OkStatus()));
      const auto runs = static_cast<size_t>(ranks > 1 ? ranks : 0);
      EXPECT_THAT(TheFakeCublasLt().TakeCalls(), ::testing::SizeIs(runs * matmuls)) << ranks;
      EXPECT_THAT(TheFakeCudnn().TakeCalls(), ::testing::SizeIs(runs * convolutions)) << ranks;
    }
  }
}

TEST_F(PreparationTest, ImagesAreLoadedByLoadOnSeveralThreads) {
  FakeDriver& driver = LoadFakeDriver({.compile_time = std::chrono::milliseconds(50)}).driver;
  EXPECT_THAT(LoadOn(1), ElementsAre(absl::OkStatus()));
  EXPECT_GE(driver.most_loads_at_once(), 2);
  EXPECT_THAT(driver.calls(), Contains("cuModuleLoadDataEx").Times(::testing::Ge(4)));
  EXPECT_THAT(driver.calls(), Contains(StartsWith("cuModuleGetFunction gather_")));
  EXPECT_THAT(driver.calls(), Contains(StartsWith("cuLaunchKernel")).Times(0));
  EXPECT_THAT(driver.misuse(), IsEmpty());
}

TEST_F(PreparationTest, AnImageThatTheDriverDoesNotTakeNamesOpAndKernel) {
  FakeDriver& driver = LoadFakeDriver({}).driver;
  driver.FailCall("cuModuleLoadDataEx", 1, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  EXPECT_THAT(MessageOf(LoadOn(1)[0]),
              AllOf(HasSubstr("(at onnx:/"), HasSubstr(": kernel "), HasSubstr("CUDA_ERROR_UNSUPPORTED_PTX_VERSION")));
}

// The driver would refuse the first kernel without mentioning GPUs. A product would run, with settings for another GPU.
TEST_F(PreparationTest, AGpuThatIsOlderThanTheOneThatIsCompiledForIsNamed) {
  FakeDriver& driver = LoadFakeDriver({.capability = 80}).driver;
  const absl::Status status = LoadOn(1)[0];
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      MessageOf(status),
      "@f is compiled for NVIDIA H200 (sm_90), and this rank's GPU, Fake GPU, 132 multiprocessors, is sm_80, which "
      "cannot run it: isa selects the GPU to compile for, which is the first GPU of the machine if isa is empty");
  EXPECT_THAT(driver.calls(), Contains("cuModuleLoadDataEx").Times(0));
  LoadFakeDriver({.capability = 100});
  EXPECT_THAT(LoadOn(1), ElementsAre(absl::OkStatus()));  // later GPUs run it
}

TEST_F(PreparationTest, AKernelThatIsNotInItsImageNamesTheOp) {
  FakeDriver& driver = LoadFakeDriver({}).driver;
  driver.FailCall("cuModuleGetFunction", 1, CUDA_ERROR_NOT_FOUND);
  EXPECT_THAT(MessageOf(LoadOn(1)[0]), AllOf(HasSubstr("(at onnx:/"), HasSubstr("cuModuleGetFunction of ")));
}

TEST_F(PreparationTest, ALibraryThatFailsIsAnErrorOfLoad) {
  LoadFakeDriver({});
  TheFakeCublasLt().FailCreate();
  EXPECT_THAT(MessageOf(LoadOn(1)[0]), AllOf(HasSubstr("(at onnx:/fc/MatMul)"), HasSubstr("cublasLtCreate")));
}

TEST_F(PreparationTest, AnErrorOfOneRankReachesItsPeers) {
  LoadFakeDriver({.gpus = 2});
  TheFakeCublasLt().FailCreate();  // on one of the two ranks
  const std::vector<absl::Status> all = LoadOn(2);
  for (const absl::Status& status : all) EXPECT_THAT(MessageOf(status), HasSubstr("cublasLtCreate"));
}

// The libraries of different GPUs would choose different kernels for the same products.
TEST_F(PreparationTest, OtherGpusAreAnError) {
  LoadFakeDriver({.gpus = 2, .multiprocessors = {132, 78}});
  for (const absl::Status& status : LoadOn(2)) {
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("GPUs and their libraries of @f"), HasSubstr("132 multiprocessors"),
                                         HasSubstr("78 multiprocessors")));
  }
}

TEST_F(PreparationTest, TwoRanksLoad) {
  LoadFakeDriver({.gpus = 2});
  EXPECT_THAT(LoadOn(2), ElementsAre(absl::OkStatus(), absl::OkStatus()));
}

// cuDNN silently omits engines if it does not find what they need.
TEST_F(PreparationTest, RanksThatChoseOtherEnginesAreAnError) {
  FakeCudnn& cudnn = TheFakeCudnn();
  LoadFakeDriver({.gpus = 2});
  cudnn.ResetEngines();
  EXPECT_THAT(LoadOn(2, kConvolution), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  cudnn.SetEnginesOf(1, CUDNN_HEUR_MODE_A, {{5, {}}});
  const std::vector<absl::Status> all = LoadOn(2, kConvolution);
  // A slow rank may get the error from the other one, which has aborted.
  EXPECT_THAT(all, Contains(Property(&absl::Status::code, absl::StatusCode::kFailedPrecondition)));
  for (const absl::Status& status : all) {
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("engines of cuDNN of @f"), HasSubstr("onnx:/conv"),
                                         HasSubstr("engine 3"), HasSubstr("engine 5"), HasSubstr("NVRTC")));
  }
  cudnn.ResetEngines();
}

// Otherwise CUDA would load a kernel at its first launch, in the middle of a step.
TEST_F(PreparationTest, KernelsAreLoadedBeforeTheyAreLaunched) {
  FakeDriver& driver = LoadFakeDriver({}).driver;
  EXPECT_THAT(LoadOn(1), ElementsAre(absl::OkStatus()));
  EXPECT_THAT(driver.calls(), Contains(StartsWith("cuFuncLoad gather_")));
  const Graph graph = ParseForTest(kText);
  std::vector<Tensor> inputs = InputsForTest(graph);
  ASSERT_TRUE(RunOnFake(graph, inputs, {}, 3).ok());
  EXPECT_THAT(driver.calls(), Contains(StartsWith("cuLaunchKernel")));
  EXPECT_THAT(driver.lazy_loads(), IsEmpty());
}

// Drivers before CUDA 12.4 load a kernel when its attributes are queried.
TEST_F(PreparationTest, OlderDriversLoadKernelsToo) {
  LoadedFakeDriver fake = LoadFakeDriver({});
  fake.api.FuncLoad = nullptr;
  const auto device = CudaDevice::Create(fake.api, 0);
  ASSERT_TRUE(device.ok()) << device.status();
  KernelImage image(std::make_shared<const std::string>(FakeKernelTexts()("copy")));
  const absl::StatusOr<CUfunction> found = image.Find(**device, "copy_b1");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(fake.driver.calls(), Contains(StartsWith("cuFuncGetAttribute copy_b1")));
  EXPECT_THAT(fake.driver.calls(), Contains(StartsWith("cuFuncLoad")).Times(0));
}

}  // namespace
}  // namespace lockstep::cuda
