// Tests the contract of runtime/device.h on events and copies ahead for each kind of device: the host, the simulated
// device, and GPUs of the fake driver, whose streams run late and out of step.

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cuda/device.h"
#include "runtime/device.h"
#include "runtime/simulated_device.h"
#include "test/fake_cuda/load.h"

namespace lockstep {
namespace {

using testing::IsEmpty;

enum class Kind { kHost, kSimulated, kCuda, kLazyCuda };

using Numbers = std::vector<int32_t>;
constexpr size_t kCount = 1000, kBytes = kCount * sizeof(int32_t);
const Numbers kUntouched(kCount, -1);

std::byte* BytesOf(Numbers& numbers) { return reinterpret_cast<std::byte*>(numbers.data()); }
Numbers All(int32_t value) { return Numbers(kCount, value); }

class AnyDevice : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    switch (GetParam()) {
      case Kind::kHost: device_ = CreateHostDevice(); return;
      case Kind::kSimulated: device_ = std::make_unique<SimulatedDevice>(); return;
      case Kind::kCuda:
      case Kind::kLazyCuda: break;
    }
    const auto pace = GetParam() == Kind::kCuda ? cuda::FakeDriver::Pace::kRandom : cuda::FakeDriver::Pace::kLazy;
    fake_ = std::make_unique<cuda::LoadedFakeDriver>(cuda::LoadFakeDriver({.pace = pace}));
    auto device = cuda::CudaDevice::Create(fake_->api, 0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  void TearDown() override {
    device_.reset();
    if (fake_ == nullptr) return;
    EXPECT_THAT(fake_->driver.leaks(), IsEmpty());
    EXPECT_THAT(fake_->driver.misuse(), IsEmpty());
  }

  bool has_queue() const { return device_->stream() != nullptr; }
  std::unique_ptr<DeviceMemory> Allocate() { return *device_->Allocate(kBytes, "memory"); }
  std::unique_ptr<DeviceEvent> CreateEvent() { return *device_->CreateEvent(); }
  std::byte* Find(std::byte* data) const {
    if (device_->is_host()) return data;
    if (fake_ == nullptr) return *static_cast<SimulatedDevice&>(*device_).Find(data, kBytes);
    return fake_->driver.Find(reinterpret_cast<cuda::CUdeviceptr>(data), kBytes);
  }

  // Stands for a kernel, which takes its time.
  void QueueWrite(const DeviceMemory& memory, int32_t value) {
    ASSERT_TRUE(device_
                    ->RunOnHost([value, to = Find(memory.data())] {
                      std::this_thread::sleep_for(std::chrono::microseconds(200));
                      std::fill_n(reinterpret_cast<int32_t*>(to), kCount, value);
                      return absl::OkStatus();
                    })
                    .ok());
  }
  void QueueRead(const DeviceMemory& memory, Numbers& found) {
    ASSERT_TRUE(device_
                    ->RunOnHost([&found, from = Find(memory.data())] {
                      std::this_thread::sleep_for(std::chrono::microseconds(200));
                      std::memcpy(found.data(), from, kBytes);
                      return absl::OkStatus();
                    })
                    .ok());
  }
  void QueueCopyToHost(Numbers& found, const DeviceMemory& memory) {
    ASSERT_TRUE(device_->CopyToHost(BytesOf(found), memory.data(), kBytes).ok());
  }

  std::unique_ptr<cuda::LoadedFakeDriver> fake_;
  std::unique_ptr<Device> device_;
};

std::string Name(const testing::TestParamInfo<Kind>& info) {
  const char* const names[] = {"Host", "Simulated", "Cuda", "LazyCuda"};
  return names[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Devices, AnyDevice,
                         testing::Values(Kind::kHost, Kind::kSimulated, Kind::kCuda, Kind::kLazyCuda), Name);

TEST_P(AnyDevice, AnEventIsAwaited) {
  const auto memory = Allocate();
  const auto first = CreateEvent(), second = CreateEvent();
  EXPECT_TRUE(device_->Await(*first).ok()) << "it was never recorded";
  for (int32_t round = 0; round < 10; ++round) {
    Numbers early = kUntouched, late = kUntouched;
    QueueWrite(*memory, 2 * round);
    QueueCopyToHost(early, *memory);
    ASSERT_TRUE(device_->Record(*first).ok());
    QueueWrite(*memory, 2 * round + 1);
    QueueCopyToHost(late, *memory);
    ASSERT_TRUE(device_->Record(*second).ok());
    if (has_queue()) {
      EXPECT_EQ(early, kUntouched);
    }
    ASSERT_TRUE(device_->Await(*first).ok());
    EXPECT_EQ(early, All(2 * round));
    if (has_queue()) {
      EXPECT_EQ(late, kUntouched) << "of a copy after the event";
    }
    ASSERT_TRUE(device_->Await(*second).ok());
    EXPECT_EQ(late, All(2 * round + 1));
    ASSERT_TRUE(device_->Await(*first).ok());
    EXPECT_EQ(early, All(2 * round));
  }
  EXPECT_TRUE(device_->Synchronize().ok());
}

// Follows the use by an executor: the source of a copy ahead is read before the next one comes, and readers of an input
// come after its copy.
TEST_P(AnyDevice, ACopyAheadKeepsItsPlace) {
  const auto ahead = Allocate(), input = Allocate();
  const auto taken = CreateEvent();
  constexpr int32_t kRounds = 20;
  std::vector<Numbers> found(kRounds, kUntouched);
  for (int32_t round = 0; round < kRounds; ++round) {
    Numbers values = All(round);
    ASSERT_TRUE(device_->CopyAhead(ahead->data(), BytesOf(values), kBytes, *taken).ok());
    values.assign(kCount, -2);  // CopyAhead has already read the values
    ASSERT_TRUE(device_->CopyWithin(input->data(), ahead->data(), kBytes).ok());
    ASSERT_TRUE(device_->Record(*taken).ok());
    QueueRead(*input, found[static_cast<size_t>(round)]);
  }
  ASSERT_TRUE(device_->Synchronize().ok());
  for (int32_t round = 0; round < kRounds; ++round) EXPECT_EQ(found[static_cast<size_t>(round)], All(round)) << round;
  EXPECT_TRUE(device_->CopyAhead(ahead->data(), nullptr, 0, *taken).ok());
}

TEST_P(AnyDevice, AnErrorIsOfTheEventsBeforeSynchronize) {
  const auto memory = Allocate();
  const auto event = CreateEvent();
  Numbers found = kUntouched, later = kUntouched;
  const absl::Status error = absl::InvalidArgumentError("label 5");
  QueueWrite(*memory, 1);
  const absl::Status queued = device_->RunOnHost([&] { return error; });
  if (!has_queue()) {
    EXPECT_EQ(queued, error);
    return;
  }
  QueueCopyToHost(found, *memory);
  ASSERT_TRUE(device_->Record(*event).ok());
  QueueCopyToHost(later, *memory);
  EXPECT_EQ(device_->Await(*event), error);
  EXPECT_EQ(device_->Await(*event), error) << "nobody has forgotten it";
  EXPECT_EQ(device_->Synchronize(), error);
  EXPECT_EQ(found, kUntouched);
  EXPECT_EQ(later, kUntouched);
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(later, kUntouched);
  // The caller of Synchronize may be another one than the caller of Await.
  EXPECT_EQ(device_->Await(*event), error);
  QueueCopyToHost(found, *memory);
  ASSERT_TRUE(device_->Record(*event).ok());
  EXPECT_TRUE(device_->Await(*event).ok());
  EXPECT_EQ(found, All(1));
}

// Destroys the event also while the stream still holds it.
TEST_P(AnyDevice, AnEventIsDestroyed) {
  const auto memory = Allocate();
  for (int32_t i = 0; i < 5; ++i) {
    const auto event = CreateEvent();
    QueueWrite(*memory, i);
    ASSERT_TRUE(device_->Record(*event).ok());
  }
  EXPECT_TRUE(device_->Synchronize().ok());
}

}  // namespace
}  // namespace lockstep
