// Tests the device's use of host memory and its queue after failures, over the fake driver.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cuda/device.h"
#include "test/fake_cuda/load.h"

namespace lockstep::cuda {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

class DeviceFailure : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Create(fake_.api, 0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  void TearDown() override {
    device_.reset();
    EXPECT_THAT(fake_.driver.leaks(), IsEmpty());
    EXPECT_THAT(fake_.driver.misuse(), IsEmpty());
  }

  LoadedFakeDriver fake_ = LoadFakeDriver();
  std::unique_ptr<CudaDevice> device_;
};

// A copy of several blocks, one of which cannot be queued: the memory belongs to the caller when the call returns.
TEST_F(DeviceFailure, ACopyThatIsHalfQueuedWritesNothingLater) {
  constexpr size_t kBytes = size_t{5} << 20;  // three blocks
  constexpr auto kUntouched = std::byte{7};
  const auto memory = *device_->Allocate(kBytes, "memory");
  const std::vector<std::byte> untouched(kBytes, kUntouched);
  std::vector<std::byte> kept = untouched, other(16, kUntouched);
  for (const char* call : {"cuMemcpyDtoHAsync", "cuEventRecord"}) {
    ASSERT_TRUE(device_->CopyToHost(other.data(), memory->data(), other.size()).ok());
    auto given_up = std::make_unique<std::vector<std::byte>>(kBytes);
    for (std::byte* host : {given_up->data(), kept.data()}) {
      fake_.driver.FailCall(call, 2, CUDA_ERROR_NOT_SUPPORTED);
      EXPECT_THAT(std::string(device_->CopyToHost(host, memory->data(), kBytes).message()), HasSubstr(call));
    }
    given_up.reset();
    ASSERT_TRUE(device_->Synchronize().ok());
    EXPECT_TRUE(kept == untouched) << call;
    EXPECT_THAT(other, Each(std::byte{0})) << "what was queued before is delivered";
    std::fill(other.begin(), other.end(), kUntouched);
  }
}

// The memory belongs to the caller when the call returns, although later blocks were being filled from it.
TEST_F(DeviceFailure, ACopyThatIsHalfQueuedReadsNothingLater) {
  constexpr size_t kBytes = (Staging::kBlocks + 2) * Staging::kBlockBytes;
  const auto memory = *device_->Allocate(kBytes, "memory");
  for (const char* call : {"cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuEventRecord"}) {
    void* const host = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(host, MAP_FAILED);
    fake_.driver.FailCall(call, 2, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_THAT(std::string(device_->CopyToDevice(memory->data(), static_cast<std::byte*>(host), kBytes).message()),
                HasSubstr(call));
    ASSERT_EQ(munmap(host, kBytes), 0);  // a thread that still reads it would end the process
    const std::vector<std::byte> values(kBytes, std::byte{3});
    std::vector<std::byte> found(kBytes);
    ASSERT_TRUE(device_->CopyToDevice(memory->data(), values.data(), kBytes).ok());
    ASSERT_TRUE(device_->CopyToHost(found.data(), memory->data(), kBytes).ok());
    ASSERT_TRUE(device_->Synchronize().ok());
    EXPECT_TRUE(found == values) << call;
  }
}

// Work that the owner of a watch aborts ends a little later. After the error, none of it is left in the queue.
TEST_F(DeviceFailure, AfterAWatchsErrorTheQueueIsEmpty) {
  std::atomic<bool> aborted{false}, ended{false};
  ASSERT_TRUE(device_
                  ->RunOnHost([&] {
                    while (!aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    std::this_thread::sleep_for(std::chrono::milliseconds(200));
                    ended = true;
                    return absl::OkStatus();
                  })
                  .ok());
  const uint64_t id = device_->stream()->AddWatch([&](absl::Duration) {
    aborted = true;
    return absl::AbortedError("rank 1 is dead");
  });
  EXPECT_EQ(device_->Synchronize(), absl::AbortedError("rank 1 is dead"));
  EXPECT_TRUE(ended);
  device_->stream()->RemoveWatch(id);
  EXPECT_TRUE(device_->Synchronize().ok());
}

// After ten seconds, the end of a device leaves alone the work that does not end, with the memory that it may use.
TEST(DeviceEnd, WorkThatDoesNotEndKeepsItsMemory) {
  const LoadedFakeDriver fake = LoadFakeDriver();
  auto device = *CudaDevice::Create(fake.api, 0);
  std::atomic<bool> go{false}, ended{false};
  auto memory = *device->Allocate(1000, "memory");
  ASSERT_TRUE(device
                  ->RunOnHost([&] {
                    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    ended = true;
                    return absl::OkStatus();
                  })
                  .ok());
  const size_t used = fake.driver.used(0);
  memory.reset();
  testing::internal::CaptureStderr();
  const auto begin = std::chrono::steady_clock::now();
  device.reset();
  const auto waited = std::chrono::steady_clock::now() - begin;
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("destroyed with work in flight that does not end"));
  EXPECT_GT(waited, std::chrono::seconds(9));
  EXPECT_LT(waited, std::chrono::seconds(15));
  EXPECT_EQ(fake.driver.used(0), used);
  go = true;
  while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(fake.api.DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
}

}  // namespace
}  // namespace lockstep::cuda
