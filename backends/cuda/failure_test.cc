// Work in the stream of a fake GPU that fails or never ends, and the error of the next call of each kind: a kernel's
// launch, a product, a graph's launch.

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/cuda/captured_steps.h"
#include "backends/cuda/kernel_image.h"
#include "backends/cuda/product.h"
#include "core/printer.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cuda/device.h"
#include "test/fake_cuda/load.h"

namespace lockstep::cuda {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

// Writes its second parameter to the address in the first.
void Write(void** parameters, const FakeLaunch& launch) {
  CUdeviceptr address;
  std::memcpy(&address, parameters[0], sizeof(address));
  if (void* found = launch.find(address, sizeof(uint64_t)); found != nullptr) {
    std::memcpy(found, parameters[1], sizeof(uint64_t));
  }
}

class Failure : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Create(fake_.api, 0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    memory_ = *device_->Allocate(1 << 16, "memory");
    auto kernel = image_->Find(*device_, "write");
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    kernel_ = *kernel;
  }

  absl::Status LaunchAt(CUdeviceptr address) {
    uint64_t value = 1;
    void* parameters[] = {&address, &value};
    return Launch(*device_->stream(), kernel_, {.threads = 32}, parameters);
  }
  absl::Status LaunchGood() { return LaunchAt(reinterpret_cast<CUdeviceptr>(memory_->data())); }

  // Launches a kernel that accesses invalid memory. The device has not been told yet.
  void Break() {
    ASSERT_TRUE(LaunchAt(0x1000).ok());
    while (fake_.api.StreamQuery(device_->stream()->handle()) == CUDA_ERROR_NOT_READY) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Expects that `status`, of the first call after Break, is returned by every later call.
  void ExpectForEver(const absl::Status& status, const std::string& call) {
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("cuda:0 (Fake GPU"), HasSubstr(call), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"),
                      HasSubstr("or of work that was queued before"), HasSubstr("ends all use")));
    EXPECT_EQ(LaunchGood(), status);
    EXPECT_EQ(device_->Synchronize(), status);
  }

  const LoadedFakeDriver fake_ = LoadFakeDriver();
  std::unique_ptr<CudaDevice> device_;
  std::shared_ptr<KernelImage> image_ = std::make_shared<KernelImage>(std::make_shared<const std::string>(
      absl::StrCat("lockstep-fake-kernels\nwrite ", absl::Hex(reinterpret_cast<uintptr_t>(Write)), " 8 8\n")));
  std::unique_ptr<DeviceMemory> memory_;
  CUfunction kernel_ = nullptr;
};

// --- The first cause ----------------------------------------------------------------------------------------------

TEST_F(Failure, ALaunchIsNotBlamedForWhatWasBefore) {
  Break();
  ExpectForEver(LaunchGood(), "cuLaunchKernel");
}

// Matrices of two by two, which fit in the device's memory.
class ProductFailure : public Failure {
 protected:
  void SetUp() override {
    Failure::SetUp();
    ASSERT_TRUE(library_->Open().ok());
    auto graph = ParseGraph(R"(graph @f(%x: f32[2,2], %y: f32[2,2]) -> (z: f32[2,2]) {
      %z = matmul %x, %y : f32[2,2]
      return %z
    })");
    ASSERT_TRUE(graph.ok()) << graph.status();
    product_ =
        std::make_unique<Product>(MatMulProblem(*graph->results().front().value.node, false, 64), kWorkspace, library_);
    ASSERT_TRUE(product_->Open().ok());
    auto candidates = product_->Candidates(1);
    ASSERT_TRUE(candidates.ok()) << candidates.status();
    product_->Choose(candidates->front());
  }
  absl::Status RunProduct() {
    std::byte* const data = memory_->data();
    return product_->Run(*device_->stream(), {data, data + 64, nullptr, data + 128, data + 4096});
  }

  static constexpr uint64_t kWorkspace = 4096;
  std::shared_ptr<CublasLtHandle> library_ = std::make_shared<CublasLtHandle>("cublasLtCreate");
  std::unique_ptr<Product> product_;
};

TEST_F(ProductFailure, AProductIsNotBlamedForWhatWasBefore) {
  ASSERT_TRUE(RunProduct().ok());
  Break();
  const absl::Status status = RunProduct();
  ExpectForEver(status, "cublasLtMatmul");
  EXPECT_EQ(RunProduct(), status);
}

// The error is the product's own if no earlier work failed.
TEST_F(ProductFailure, AProductThatFailsItselfIsNamedAlone) {
  std::byte* const data = memory_->data();
  const absl::Status status = product_->Run(*device_->stream(), {data, data + 68, nullptr, data + 128, data + 4096});
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("cublasLtMatmul"), Not(HasSubstr("queued before"))));
  EXPECT_TRUE(RunProduct().ok());
  EXPECT_TRUE(device_->Synchronize().ok());
}

// --- A graph ------------------------------------------------------------------------------------------------------

class CallStep final : public Step {
 public:
  explicit CallStep(std::function<absl::Status()> f) : Step(StepInfo{}), f_(std::move(f)) {}
  absl::Status Run(StepContext&) override { return f_(); }

 private:
  const std::function<absl::Status()> f_;
};

TEST_F(Failure, AGraphIsNotBlamedForWhatWasBefore) {
  StepList steps;
  steps.push_back(std::make_unique<CallStep>([this] { return LaunchGood(); }));
  StepContext context({}, *device_, {}, {});
  CapturedSteps whole;
  for (int run = 0; run < 3; ++run) ASSERT_TRUE(whole.Run(steps, context).ok());
  EXPECT_THAT(fake_.driver.calls(), Contains(HasSubstr("cuGraphLaunch"))) << "it would test steps";
  Break();
  ExpectForEver(whole.Run(steps, context), "cuGraphLaunch");
}

// NCCL allocates on its own threads while steps are captured. This must be allowed.
TEST_F(Failure, OtherThreadsMayAllocateDuringACapture) {
  StepList steps;
  steps.push_back(std::make_unique<CallStep>([this] {
    std::thread other([this] {
      CUdeviceptr memory = 0;
      EXPECT_EQ(fake_.api.CtxSetCurrent(device_->context()), CUDA_SUCCESS);
      EXPECT_EQ(fake_.api.MemAlloc(&memory, 64), CUDA_SUCCESS);
      EXPECT_EQ(fake_.api.MemFree(memory), CUDA_SUCCESS);
    });
    other.join();
    return LaunchGood();
  }));
  StepContext context({}, *device_, {}, {});
  CapturedSteps whole;
  for (int run = 0; run < 2; ++run) ASSERT_TRUE(whole.Run(steps, context).ok());
  EXPECT_THAT(fake_.driver.calls(), Contains(HasSubstr("cuGraphLaunch")));
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_THAT(fake_.driver.misuse(), IsEmpty());
}

// A stream must not be queried for errors during a capture.
TEST_F(ProductFailure, AProductThatFailsInACaptureIsNamed) {
  int runs = 0;
  absl::Status in_capture;
  StepList steps;
  steps.push_back(std::make_unique<CallStep>([&]() -> absl::Status {
    if (++runs != 2) return RunProduct();
    std::byte* const data = memory_->data();
    return in_capture = product_->Run(*device_->stream(), {data, data + 68, nullptr, data + 128, data + 4096});
  }));
  StepContext context({}, *device_, {}, {});
  CapturedSteps whole;
  testing::internal::CaptureStderr();
  for (int run = 0; run < 2; ++run) EXPECT_TRUE(whole.Run(steps, context).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("runs step by step"), HasSubstr("cublasLtMatmul")));
  EXPECT_EQ(runs, 3) << "once in the capture, and then step by step";
  EXPECT_THAT(MessageOf(in_capture), AllOf(HasSubstr("cublasLtMatmul"), Not(HasSubstr("queued before"))));
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_THAT(fake_.driver.misuse(), IsEmpty());
}

// --- A grid -------------------------------------------------------------------------------------------------------

TEST_F(Failure, AGridThatNoGpuHasIsRefused) {
  CUdeviceptr address = reinterpret_cast<CUdeviceptr>(memory_->data());
  uint64_t value = 1;
  void* parameters[] = {&address, &value};
  constexpr int64_t kMany = int64_t{1} << 31;
  for (const Grid& grid :
       {Grid{.blocks_x = kMany, .threads = 32}, Grid{.blocks_x = 1, .blocks_y = 65536, .threads = 32}}) {
    const absl::Status status = Launch(*device_->stream(), kernel_, grid, parameters);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("a grid of "), HasSubstr("at most 2147483647 x 65535")));
  }
  EXPECT_THAT(fake_.driver.calls(), Not(Contains(HasSubstr("cuLaunchKernel"))));
}

// --- A full queue ----------------------------------------------------------------------------------------------------

// A launch into a full queue blocks in the driver. Before the queue is full, the device waits for queued work in a way
// that notices the death of a peer.
TEST_F(Failure, NobodyWaitsForAPeerInsideTheDriver) {
  std::atomic<bool> go{false}, launched{false};
  ASSERT_TRUE(device_
                  ->RunOnHost([&go] {
                    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    return absl::OkStatus();
                  })
                  .ok());
  std::thread rescue([&] {  // otherwise a failure of the test would hang
    for (int i = 0; i < 2000 && !launched; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    go = true;
  });
  int asked = 0;
  const uint64_t id = device_->stream()->AddWatch(
      [&asked](absl::Duration) { return ++asked < 20 ? absl::OkStatus() : absl::AbortedError("rank 1 is dead"); });
  absl::Status status;
  for (int i = 0; i < 3000 && status.ok(); ++i) status = LaunchGood();
  EXPECT_EQ(status, absl::AbortedError("rank 1 is dead"));
  EXPECT_FALSE(go) << "it stood in the driver";
  launched = true;
  rescue.join();
  device_->stream()->RemoveWatch(id);
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_THAT(fake_.driver.misuse(), IsEmpty());
}

// During a capture nothing is queued, so there is no wait.
TEST_F(Failure, ManyLaunchesAreCaptured) {
  StepList steps;
  steps.push_back(std::make_unique<CallStep>([this]() -> absl::Status {
    for (int i = 0; i < 3000; ++i) RETURN_IF_ERROR(LaunchGood());
    return absl::OkStatus();
  }));
  StepContext context({}, *device_, {}, {});
  CapturedSteps whole;
  for (int run = 0; run < 2; ++run) ASSERT_TRUE(whole.Run(steps, context).ok());
  EXPECT_THAT(fake_.driver.calls(), Contains(HasSubstr("cuGraphLaunch")));
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_THAT(fake_.driver.misuse(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::cuda
