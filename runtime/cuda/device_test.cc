// Tests the contract of a GPU (runtime/device.h and device.h here) over the fake driver, whose streams run late.

#include "runtime/cuda/device.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cuda/kept_contexts.h"
#include "test/fake_cuda/load.h"

namespace lockstep::cuda {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

using Numbers = std::vector<int32_t>;
std::byte* BytesOf(Numbers& numbers) { return reinterpret_cast<std::byte*>(numbers.data()); }
constexpr int32_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int32_t);

void Rest() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

// A device of a new fake driver. At the end, nothing may be leaked or misused.
class DeviceOverFake : public testing::TestWithParam<FakeDriver::Pace> {
 protected:
  void SetUp() override { Make({.gpus = 3, .pace = GetParam()}); }
  void TearDown() override {
    device_.reset();
    EXPECT_THAT(fake_->driver.leaks(), IsEmpty());
    if (!misused_) {
      EXPECT_THAT(fake_->driver.misuse(), IsEmpty());
    }
  }

  void Make(const FakeDriver::Options& options) {
    device_.reset();
    fake_ = std::make_unique<LoadedFakeDriver>(LoadFakeDriver(options));
    auto device = CudaDevice::Create(fake_->api, 0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  std::unique_ptr<DeviceMemory> Allocate(size_t bytes) {
    auto memory = device_->Allocate(bytes, "memory");
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  std::unique_ptr<DeviceMemory> AllocatePinned(size_t bytes) {
    auto memory = device_->AllocatePinned(bytes, "memory");
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }

  // Stands for kernels: these read and write device memory in stream order, and take their time.
  void QueueRead(const DeviceMemory& memory, Numbers& found) {
    const absl::Status status = device_->RunOnHost([&, data = memory.data(), bytes = memory.bytes()] {
      Rest();
      std::memcpy(found.data(), Find(data, bytes), bytes);
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }
  void QueueWrite(const DeviceMemory& memory, int32_t value) {
    const absl::Status status = device_->RunOnHost([=, this, data = memory.data(), bytes = memory.bytes()] {
      Rest();
      std::fill_n(reinterpret_cast<int32_t*>(Find(data, bytes)), bytes / sizeof(int32_t), value);
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }
  std::byte* Find(const std::byte* data, size_t bytes) {
    return fake_->driver.Find(reinterpret_cast<CUdeviceptr>(data), bytes);
  }

  std::unique_ptr<LoadedFakeDriver> fake_;
  std::unique_ptr<CudaDevice> device_;
  bool misused_ = false;
};

INSTANTIATE_TEST_SUITE_P(Paces, DeviceOverFake, testing::Values(FakeDriver::Pace::kRandom, FakeDriver::Pace::kLazy),
                         [](const auto& info) {
                           return info.param == FakeDriver::Pace::kRandom ? "AtRandom" : "AsLateAsCanBe";
                         });

// --- Memory and copies --------------------------------------------------------------------------------------------

TEST_P(DeviceOverFake, MemoryIsZeroed) {
  const auto memory = Allocate(kBytes);
  const auto pinned = AllocatePinned(kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned->data()) % 64, 0u);
  Numbers found(kCount, 7);
  ASSERT_TRUE(device_->CopyToHost(BytesOf(found), memory->data(), kBytes).ok());
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(found, Numbers(kCount, 0));
  EXPECT_EQ(std::memcmp(pinned->data(), BytesOf(found), kBytes), 0);
  const auto none = Allocate(0), pinned_none = AllocatePinned(0);
  EXPECT_EQ(none->bytes() + pinned_none->bytes(), 0u);
  EXPECT_TRUE(device_->CopyToHost(nullptr, none->data(), 0).ok());
  EXPECT_TRUE(device_->CopyToDevice(none->data(), nullptr, 0).ok());
  EXPECT_TRUE(device_->CopyWithin(none->data(), none->data(), 0).ok());
}

TEST_P(DeviceOverFake, ACopyTakesTheHostsMemoryAtOnce) {
  const auto memory = Allocate(kBytes);
  Numbers found(kCount);
  {
    Numbers values(kCount, 3);
    ASSERT_TRUE(device_->CopyToDevice(memory->data(), BytesOf(values), kBytes).ok());
    values.assign(kCount, 4);
  }
  ASSERT_TRUE(device_->CopyToHost(BytesOf(found), memory->data(), kBytes).ok());
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(found, Numbers(kCount, 3));
}

// While earlier steps still run, and also while data is copied to the host.
TEST_P(DeviceOverFake, ACopyAheadDoesNotWaitForTheSteps) {
  if (GetParam() == FakeDriver::Pace::kLazy) GTEST_SKIP() << "a stream that nobody asks does nothing";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "it looks at the GPU's memory while a stream writes it, as whoever waited for the stream would not";
#endif
  const auto memory = Allocate(kBytes), large = Allocate((Staging::kBlocks - 1) * Staging::kBlockBytes);
  const auto event = *device_->CreateEvent();
  ASSERT_TRUE(device_->Record(*event).ok());
  std::atomic<bool> go{false};
  ASSERT_TRUE(device_
                  ->RunOnHost([&go] {
                    while (!go) Rest();
                    return absl::OkStatus();
                  })
                  .ok());
  std::vector<std::byte> result(large->bytes());
  ASSERT_TRUE(device_->CopyToHost(result.data(), large->data(), result.size()).ok());
  Numbers values(kCount, 3);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(device_->CopyAhead(memory->data(), BytesOf(values), kBytes, *event).ok());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto copied = [&] { return std::memcmp(Find(memory->data(), kBytes), values.data(), kBytes) == 0; };
  while (!copied() && std::chrono::steady_clock::now() < until) Rest();
  EXPECT_TRUE(copied()) << "it waits for a step";
  go = true;
  EXPECT_TRUE(device_->Synchronize().ok());
}

// More than all staging memory, in both directions, and not a multiple of any size.
TEST_P(DeviceOverFake, LargeCopies) {
  const size_t count = (Staging::kBlocks + 3) * Staging::kBlockBytes / sizeof(int32_t) + 5;
  Numbers values(count), found(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(i * 2654435761u);
  const auto memory = Allocate(count * sizeof(int32_t));
  ASSERT_TRUE(device_->CopyToDevice(memory->data(), BytesOf(values), memory->bytes()).ok());
  ASSERT_TRUE(device_->CopyToHost(BytesOf(found), memory->data(), memory->bytes()).ok());
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_TRUE(found == values);
}

// Each block is queued when it is filled, and not before; the driver reads it late.
TEST_P(DeviceOverFake, ABlockIsFilledWhenItIsQueued) {
  device_.reset();
  static constexpr size_t kLarge = (2 * Staging::kBlocks + 1) * Staging::kBlockBytes + 12;
  static decltype(DriverApi::MemcpyHtoDAsync) copy;
  static Numbers values;
  static CUdeviceptr target = 0;
  static int filled = 0, unfilled = 0;
  values.assign(kLarge / sizeof(int32_t), 0);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * 2654435761u);
  copy = fake_->api.MemcpyHtoDAsync;
  DriverApi looks = fake_->api;
  looks.MemcpyHtoDAsync = [](CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    ++(std::memcmp(from, BytesOf(values) + (to - target), bytes) == 0 ? filled : unfilled);
    return copy(to, from, bytes, stream);
  };
  device_ = *CudaDevice::Create(looks, 0);
  const auto memory = Allocate(kLarge);
  target = reinterpret_cast<CUdeviceptr>(memory->data());
  filled = unfilled = 0;
  for (int round = 0; round < 2; ++round) {
    for (int32_t& value : values) value ^= 1;
    ASSERT_TRUE(device_->CopyToDevice(memory->data(), BytesOf(values), kLarge).ok());
  }
  EXPECT_EQ(unfilled, 0);
  EXPECT_EQ(filled, 2 * (2 * Staging::kBlocks + 2));
  ASSERT_TRUE(device_->Synchronize().ok());
}

// Large inputs of one step after the other, each copied while the step before computes, and changed at once.
TEST_P(DeviceOverFake, LargeCopiesAhead) {
  constexpr size_t kLarge = 3 * Staging::kBlockBytes + 4;
  constexpr int32_t kSteps = 20;
  const auto ahead = Allocate(kLarge), input = Allocate(kLarge);
  const auto taken = *device_->CreateEvent();
  Numbers values(kLarge / sizeof(int32_t));
  std::vector<Numbers> found(kSteps, Numbers(values.size()));
  ASSERT_TRUE(device_->Record(*taken).ok());
  for (int32_t step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = step + static_cast<int32_t>(i);
    ASSERT_TRUE(device_->CopyAhead(ahead->data(), BytesOf(values), kLarge, *taken).ok());
    values.assign(values.size(), -1);
    ASSERT_TRUE(device_->CopyWithin(input->data(), ahead->data(), kLarge).ok());
    ASSERT_TRUE(device_->Record(*taken).ok());
    QueueRead(*input, found[static_cast<size_t>(step)]);
  }
  ASSERT_TRUE(device_->Synchronize().ok());
  for (int32_t step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = step + static_cast<int32_t>(i);
    EXPECT_TRUE(found[static_cast<size_t>(step)] == values) << step;
  }
}

TEST_P(DeviceOverFake, CopiesAreInTheStreamsOrder) {
  const auto a = Allocate(kBytes), b = Allocate(kBytes);
  Numbers before(kCount), after(kCount), first(kCount), last(kCount), five(kCount, 5);
  for (int round = 0; round < 10; ++round) {
    QueueWrite(*a, 1);
    QueueRead(*a, before);  // of memory that is overwritten next
    ASSERT_TRUE(device_->CopyToDevice(a->data(), BytesOf(five), kBytes).ok());
    QueueRead(*a, after);
    ASSERT_TRUE(device_->CopyWithin(b->data(), a->data(), kBytes).ok());
    QueueWrite(*a, 6);
    ASSERT_TRUE(device_->CopyToHost(BytesOf(first), b->data(), kBytes).ok());
    QueueWrite(*b, 7);
    ASSERT_TRUE(device_->CopyToHost(BytesOf(last), b->data(), kBytes).ok());
    ASSERT_TRUE(device_->Synchronize().ok());
    EXPECT_EQ(before, Numbers(kCount, 1));
    EXPECT_EQ(after, Numbers(kCount, 5));
    EXPECT_EQ(first, Numbers(kCount, 5));
    EXPECT_EQ(last, Numbers(kCount, 7));
  }
}

// Of two copies to one address, the last one remains, however many lie between.
TEST_P(DeviceOverFake, TheLastCopyToAPlaceStays) {
  const auto memory = Allocate(kBytes);
  Numbers found(kCount);
  for (size_t i = 0; i <= Staging::kBlocks + 5; ++i) {
    QueueWrite(*memory, static_cast<int32_t>(i));
    ASSERT_TRUE(device_->CopyToHost(BytesOf(found), memory->data(), kBytes).ok());
  }
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(found, Numbers(kCount, static_cast<int32_t>(Staging::kBlocks) + 5));
}

TEST_P(DeviceOverFake, PinnedMemoryIsCopiedInTheStreamsOrder) {
  const auto memory = Allocate(kBytes), pinned = AllocatePinned(kBytes);
  auto* numbers = reinterpret_cast<int32_t*>(pinned->data());
  QueueWrite(*memory, 1);
  ASSERT_TRUE(device_->CopyToHost(pinned->data(), memory->data(), kBytes).ok());
  int32_t seen = 0;
  ASSERT_TRUE(device_
                  ->RunOnHost([&] {
                    seen = numbers[kCount - 1];
                    Rest();
                    std::fill_n(numbers, kCount, 2);
                    return absl::OkStatus();
                  })
                  .ok());
  ASSERT_TRUE(device_->CopyToDevice(memory->data(), pinned->data(), kBytes).ok());
  Numbers found(kCount);
  ASSERT_TRUE(device_->CopyToHost(BytesOf(found), memory->data(), kBytes).ok());
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(found, Numbers(kCount, 2));
}

// Bytes outside of pinned memory are read at once, even behind pinned memory or where it was.
TEST_P(DeviceOverFake, OnlyPinnedMemoryIsTakenLater) {
  device_.reset();
  DriverApi keeps = fake_->api;
  keeps.MemFreeHost = [](void*) { return CUDA_SUCCESS; };  // so that the host can continue to use it
  device_ = *CudaDevice::Create(keeps, 0);
  const auto memory = Allocate(kBytes);
  auto pinned = AllocatePinned(kBytes);
  std::byte* const behind = pinned->data() + kBytes;
  std::byte* const freed = pinned->data();
  pinned.reset();
  const auto next = AllocatePinned(96);  // of a page
  for (std::byte* const host : {freed, behind, next->data() + 96}) {
    constexpr size_t kFew = 64;
    std::memset(host, 3, kFew);
    ASSERT_TRUE(device_->CopyToDevice(memory->data(), host, kFew).ok());
    std::memset(host, 4, kFew);
    std::vector<std::byte> found(kFew);
    ASSERT_TRUE(device_->CopyToHost(found.data(), memory->data(), kFew).ok());
    ASSERT_TRUE(device_->Synchronize().ok());
    EXPECT_EQ(found, std::vector<std::byte>(kFew, std::byte{3}));
  }
}

// Memory that other streams use is kept until they have ended, whether the device's streams are idle or not.
TEST_P(DeviceOverFake, HeldMemoryIsKept) {
  bool first = true, second = true;
  const uint64_t of_first = device_->AddHolder([&] { return first; });
  const uint64_t of_second = device_->AddHolder([&] { return second; });
  ASSERT_TRUE(device_->Synchronize().ok());
  const auto free_bytes = [&] {
    size_t free = 0, total = 0;
    EXPECT_EQ(fake_->api.MemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  };
  const size_t before = free_bytes();
  (void)Allocate(kBytes);
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_LT(free_bytes(), before);
  first = false;
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_LT(free_bytes(), before) << "the second still holds it";
  second = false;
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(free_bytes(), before);
  second = true;
  device_->RemoveHolder(of_first);
  device_->RemoveHolder(of_second);
  (void)Allocate(kBytes);
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(free_bytes(), before) << "nobody holds it";
}

// Only Synchronize writes the caller's memory: never later, and not if it fails.
TEST_P(DeviceOverFake, WhatFailsWritesNothing) {
  const auto memory = Allocate(kBytes);
  {
    Numbers found(kCount, 7);
    ASSERT_TRUE(device_->CopyToHost(BytesOf(found), memory->data(), kBytes).ok());
    ASSERT_TRUE(device_->RunOnHost([] { return absl::CancelledError("no"); }).ok());
    Rest();
    EXPECT_EQ(found, Numbers(kCount, 7)) << "before it is synchronized";
    EXPECT_EQ(device_->Synchronize(), absl::CancelledError("no"));
    EXPECT_EQ(found, Numbers(kCount, 7));
  }
  EXPECT_TRUE(device_->Synchronize().ok());
}

// Queued work may still use freed memory. It is freed afterwards.
TEST_P(DeviceOverFake, MemoryOutlivesItsUse) {
  const size_t used = fake_->driver.used(0);
  {
    const auto memory = Allocate(kBytes);
    const auto pinned = AllocatePinned(kBytes);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(device_->CopyToHost(pinned->data(), memory->data(), kBytes).ok());
      QueueWrite(*memory, 3);
      ASSERT_TRUE(device_->CopyToDevice(memory->data(), pinned->data(), kBytes).ok());
    }
  }
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(fake_->driver.used(0), used);
}

// Also for a copy for which the steps do not wait, because the call that orders them failed.
TEST_P(DeviceOverFake, MemoryOutlivesACopyThatNobodyWaitsFor) {
  Numbers values(kCount, 3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> go{false};
    auto memory = Allocate(kBytes);
    ASSERT_TRUE(device_
                    ->RunOnHost([&go] {
                      while (!go) Rest();
                      return absl::OkStatus();
                    })
                    .ok());
    // the first makes the copy wait for the steps
    fake_->driver.FailCall("cuStreamWaitEvent", 2, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_FALSE(device_->CopyToDevice(memory->data(), BytesOf(values), kBytes).ok());
    memory.reset();
    go = true;
    EXPECT_TRUE(device_->Synchronize().ok());
  }
}

TEST_P(DeviceOverFake, OutOfMemoryIsSaid) {
  const absl::Status status = device_->Allocate(size_t{300} << 20, "the arena").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(MessageOf(status),
            "cuda:0 (Fake GPU, 256 MiB) has no 314572800 bytes (300 MiB) of memory for the arena: 268435448 bytes (255 "
            "MiB) are free");
  fake_->driver.FailCall("cuMemHostAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const absl::Status pinned = device_->AllocatePinned(64, "bucket 1").status();
  EXPECT_EQ(pinned.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(pinned), AllOf(HasSubstr("64 bytes"), HasSubstr("bucket 1")));
  // Waits for freed memory that is still in use.
  auto most = Allocate(size_t{200} << 20);
  QueueWrite(*most, 1);
  most.reset();
  EXPECT_TRUE(device_->Allocate(size_t{200} << 20, "again").ok());
}

// --- Functions of the host ----------------------------------------------------------------------------------------

TEST_P(DeviceOverFake, AfterAnErrorFunctionsAreDropped) {
  int ran = 0;
  auto owned = std::make_shared<int>(1);
  ASSERT_TRUE(device_->RunOnHost([&ran] { return ++ran, absl::OkStatus(); }).ok());
  ASSERT_TRUE(device_->RunOnHost([] { return absl::InvalidArgumentError("label 5"); }).ok());
  ASSERT_TRUE(device_->RunOnHost([&ran, owned] { return ++ran, absl::CancelledError("another"); }).ok());
  EXPECT_EQ(device_->Synchronize(), absl::InvalidArgumentError("label 5"));
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_TRUE(device_->Synchronize().ok());
  ASSERT_TRUE(device_->RunOnHost([&ran] { return ++ran, absl::OkStatus(); }).ok());
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(ran, 2);
}

// A function may own what only the device can free, which a thread of the driver must not do.
TEST_P(DeviceOverFake, TheDevicesThreadDestroysFunctions) {
  std::thread::id thread;
  std::shared_ptr<int> owned(new int(1), [&thread](const int* number) {
    thread = std::this_thread::get_id();
    delete number;
  });
  ASSERT_TRUE(device_->RunOnHost([owned = std::move(owned)] { return absl::OkStatus(); }).ok());
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST_P(DeviceOverFake, AFunctionIsNotCaptured) {
  ASSERT_EQ(fake_->api.StreamBeginCapture(device_->stream()->handle(), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_THAT(MessageOf(device_->RunOnHost([] { return absl::OkStatus(); })), HasSubstr("captured"));
  CUgraph graph = nullptr;
  ASSERT_EQ(fake_->api.StreamEndCapture(device_->stream()->handle(), &graph), CUDA_SUCCESS);
  EXPECT_EQ(fake_->api.GraphDestroy(graph), CUDA_SUCCESS);
}

// --- Waiting ------------------------------------------------------------------------------------------------------

TEST_P(DeviceOverFake, AWatchEndsTheWait) {
  std::atomic<bool> go{false};
  const auto memory = Allocate(kBytes);
  ASSERT_TRUE(device_
                  ->RunOnHost([&go] {
                    while (!go) Rest();
                    return absl::OkStatus();
                  })
                  .ok());
  int asked = 0;
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t id = device_->stream()->AddWatch([&](absl::Duration) -> absl::Status {
    if (++asked < 20) return absl::OkStatus();
    return absl::AbortedError("rank 1 is dead");
  });
  {
    Numbers found(kCount, 7);
    ASSERT_TRUE(device_->CopyToHost(BytesOf(found), memory->data(), kBytes).ok());
    EXPECT_EQ(device_->Synchronize(), absl::AbortedError("rank 1 is dead"));
  }  // the copy has not run yet
  const auto waited = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(waited, std::chrono::milliseconds(19));
  EXPECT_LT(waited, std::chrono::seconds(10));
  EXPECT_EQ(asked, 20);
  go = true;
  device_->stream()->RemoveWatch(id);
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(asked, 20);
}

// Also if all work has ended: it may have been aborted, and its results are invalid.
TEST_P(DeviceOverFake, AWatchIsAskedWhenAllHasEnded) {
  const auto memory = Allocate(kBytes);
  const auto event = *device_->CreateEvent();
  ASSERT_TRUE(device_->Record(*event).ok());
  while (fake_->api.StreamQuery(device_->stream()->handle()) == CUDA_ERROR_NOT_READY) Rest();
  const uint64_t id = device_->stream()->AddWatch([](absl::Duration) { return absl::AbortedError("rank 1 is dead"); });
  EXPECT_EQ(device_->Await(*event), absl::AbortedError("rank 1 is dead"));
  EXPECT_EQ(device_->Synchronize(), absl::AbortedError("rank 1 is dead"));
  device_->stream()->RemoveWatch(id);
}

// A device with one or two hundred queued pieces of work does not block its host.
TEST_P(DeviceOverFake, MuchIsQueuedWithoutAWait) {
  std::atomic<bool> go{false}, queued{false};
  const auto memory = Allocate(kBytes);
  ASSERT_TRUE(device_
                  ->RunOnHost([&go] {
                    while (!go) Rest();
                    return absl::OkStatus();
                  })
                  .ok());
  std::thread rescue([&] {  // turns a failure of the test into an error instead of a hang
    for (int i = 0; i < 5000 && !queued; ++i) Rest();
    go = true;
  });
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(device_->CopyWithin(memory->data() + 8, memory->data(), 8).ok());
  EXPECT_FALSE(go) << "it waits for what it has queued last";
  queued = true;
  rescue.join();
  EXPECT_TRUE(device_->Synchronize().ok());
}

// Also if a copy waits for staging memory.
TEST_P(DeviceOverFake, AWatchEndsTheWaitOfACopy) {
  std::atomic<bool> go{false};
  const auto memory = Allocate((Staging::kBlocks + 1) * Staging::kBlockBytes);
  ASSERT_TRUE(device_
                  ->RunOnHost([&go] {
                    while (!go) Rest();
                    return absl::OkStatus();
                  })
                  .ok());
  const uint64_t id = device_->stream()->AddWatch([](absl::Duration) { return absl::AbortedError("rank 1 is dead"); });
  std::vector<std::byte> host(memory->bytes());
  EXPECT_EQ(device_->CopyToDevice(memory->data(), host.data(), host.size()), absl::AbortedError("rank 1 is dead"));
  EXPECT_EQ(device_->CopyToHost(host.data(), memory->data(), host.size()), absl::AbortedError("rank 1 is dead"));
  device_->stream()->RemoveWatch(id);
  go = true;
  EXPECT_TRUE(device_->Synchronize().ok());
}

TEST_P(DeviceOverFake, IsDestroyedWhenItsWorkHasEnded) {
  int ran = 0;
  const auto count = [&ran] {
    Rest();
    return ++ran, absl::OkStatus();
  };
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(device_->RunOnHost(count).ok());
  device_.reset();
  EXPECT_EQ(ran, 5);
}

// --- Errors of kernels --------------------------------------------------------------------------------------------

// A kernel with two parameters: the address of the word, and the value that it writes.
void WriteWord(void** parameters, const FakeLaunch& launch) {
  CUdeviceptr word;
  std::memcpy(&word, parameters[0], sizeof(word));
  if (void* found = launch.find(word, sizeof(uint64_t)); found != nullptr) {
    std::memcpy(found, parameters[1], sizeof(uint64_t));
  }
}

class Kernel {
 public:
  explicit Kernel(const DriverApi& api) : api_(api) {
    const std::string image =
        absl::StrCat("lockstep-fake-kernels\nwrite ", absl::Hex(reinterpret_cast<uintptr_t>(WriteWord)), " 8 8\n");
    EXPECT_EQ(api_.ModuleLoadDataEx(&module_, image.c_str(), 0, nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(api_.ModuleGetFunction(&function_, module_, "write"), CUDA_SUCCESS);
  }
  ~Kernel() { (void)api_.ModuleUnload(module_); }
  void Launch(CUstream stream, CUdeviceptr word, uint64_t value) {
    void* parameters[] = {&word, &value};
    EXPECT_EQ(api_.LaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr), CUDA_SUCCESS);
    word = value = 0;
  }

 private:
  const DriverApi& api_;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

TEST_P(DeviceOverFake, TheErrorWordIsAMessage) {
  Kernel kernel(fake_->api);
  CudaStream& stream = *device_->stream();
  const uint64_t first = stream.RegisterErrors({"gather: an index is out of range"});
  const uint64_t second = stream.RegisterErrors({"divide: by zero", "divide: an overflow"});
  EXPECT_TRUE(device_->Synchronize().ok());
  kernel.Launch(stream.handle(), stream.error_word(), second << 32 | 1);
  EXPECT_EQ(device_->Synchronize(), absl::InvalidArgumentError("divide: an overflow"));
  EXPECT_TRUE(device_->Synchronize().ok()) << "it is forgotten";
  kernel.Launch(stream.handle(), stream.error_word(), first << 32);
  ASSERT_TRUE(device_->RunOnHost([] { return absl::CancelledError("peers"); }).ok());
  EXPECT_EQ(device_->Synchronize(), absl::InvalidArgumentError("gather: an index is out of range"));
  EXPECT_TRUE(device_->Synchronize().ok());
  for (const uint64_t unknown : {uint64_t{7}, first << 32 | 1, uint64_t{9} << 32}) {
    kernel.Launch(stream.handle(), stream.error_word(), unknown);
    EXPECT_THAT(MessageOf(device_->Synchronize()), HasSubstr("which no kernel has registered"));
  }
}

// The event keeps the word of its time: a kernel's later error belongs to later events.
TEST_P(DeviceOverFake, AnEventKnowsItsErrorWord) {
  Kernel kernel(fake_->api);
  CudaStream& stream = *device_->stream();
  const uint64_t id = stream.RegisterErrors({"gather: an index is out of range"});
  const auto good = *device_->CreateEvent(), bad = *device_->CreateEvent();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(device_->Record(*good).ok());
    kernel.Launch(stream.handle(), stream.error_word(), id << 32);
    ASSERT_TRUE(device_->Record(*bad).ok());
    EXPECT_TRUE(device_->Await(*good).ok());
    const absl::Status error = absl::InvalidArgumentError("gather: an index is out of range");
    EXPECT_EQ(device_->Await(*bad), error);
    EXPECT_EQ(device_->Synchronize(), error);
    EXPECT_TRUE(device_->Synchronize().ok());
  }
}

TEST_P(DeviceOverFake, ABrokenContextIsSaidForEver) {
  misused_ = true;
  Kernel kernel(fake_->api);
  const auto memory = Allocate(kBytes);
  kernel.Launch(device_->stream()->handle(), 0x1000, 1);  // not an address of the device
  bool ran = false;
  const absl::Status queued = device_->RunOnHost([&ran] { return ran = true, absl::OkStatus(); });
  const absl::Status status = device_->Synchronize();
  if (!queued.ok()) {
    EXPECT_EQ(queued, status) << "the kernel had run before";
  }
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("cuda:0 (Fake GPU, 256 MiB)"), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"),
                                       HasSubstr("ends all use of the GPU")));
  std::byte host[4] = {};
  EXPECT_EQ(device_->Allocate(4, "x").status(), status);
  EXPECT_EQ(device_->AllocatePinned(4, "x").status(), status);
  EXPECT_EQ(device_->CopyToDevice(memory->data(), host, 4), status);
  EXPECT_EQ(device_->CopyToHost(host, memory->data(), 4), status);
  EXPECT_EQ(device_->CopyWithin(memory->data(), memory->data() + 4, 4), status);
  EXPECT_EQ(device_->RunOnHost([] { return absl::OkStatus(); }), status);
  EXPECT_EQ(device_->Synchronize(), status);
  EXPECT_FALSE(ran);
}

// Each such error, detected by queued work: later work never runs, and every call returns this error.
TEST_P(DeviceOverFake, AllThatBreaksAContext) {
  misused_ = true;
  for (const CUresult broken : {CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_TIMEOUT,
                                CUDA_ERROR_LAUNCH_FAILED, static_cast<CUresult>(710), static_cast<CUresult>(716)}) {
    Make({.pace = GetParam()});
    const auto memory = Allocate(kBytes);
    bool ran = false;
    fake_->driver.BreakIn(device_->stream()->handle(), broken);
    const absl::Status queued = device_->RunOnHost([&ran] { return ran = true, absl::OkStatus(); });
    const absl::Status status = device_->Synchronize();
    EXPECT_THAT(MessageOf(status), HasSubstr("ends all use of the GPU")) << broken;
    if (!queued.ok()) {
      EXPECT_EQ(queued, status) << "it was seen before";
    }
    Numbers host(kCount, 7);
    EXPECT_EQ(device_->CopyToHost(BytesOf(host), memory->data(), kBytes), status);
    EXPECT_EQ(device_->Synchronize(), status);
    EXPECT_EQ(host, Numbers(kCount, 7));
    EXPECT_FALSE(ran);
  }
}

// Every failing call returns an error that names it, and nothing hangs or leaks.
TEST_P(DeviceOverFake, EachCallThatFailsIsSaid) {
  const auto use = [this]() -> absl::Status {
    ASSIGN_OR_RETURN(auto device, CudaDevice::Create(fake_->api, 0));
    ASSIGN_OR_RETURN(const auto memory, device->Allocate(kBytes, "memory"));
    ASSIGN_OR_RETURN(const auto pinned, device->AllocatePinned(kBytes, "memory"));
    device->stream()->RegisterErrors({"an error"});
    Numbers host(kCount);
    RETURN_IF_ERROR(device->CopyWithin(memory->data() + 8, memory->data(), 8));
    RETURN_IF_ERROR(device->CopyToDevice(memory->data(), BytesOf(host), kBytes));
    RETURN_IF_ERROR(device->CopyToDevice(memory->data(), BytesOf(host), kBytes));
    RETURN_IF_ERROR(device->CopyToHost(BytesOf(host), memory->data(), kBytes));
    RETURN_IF_ERROR(device->CopyToHost(pinned->data(), memory->data(), kBytes));
    RETURN_IF_ERROR(device->CopyToDevice(memory->data(), pinned->data(), kBytes));
    RETURN_IF_ERROR(device->RunOnHost([] { return absl::OkStatus(); }));
    ASSIGN_OR_RETURN(const auto event, device->CreateEvent());
    RETURN_IF_ERROR(device->Record(*event));
    RETURN_IF_ERROR(device->CopyAhead(memory->data(), BytesOf(host), kBytes, *event));
    RETURN_IF_ERROR(device->Await(*event));
    return device->Synchronize();
  };
  device_.reset();
  int failed = 0;
  for (const std::string function :
       {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceTotalMem", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
        "cuStreamCreateWithPriority", "cuEventCreate", "cuMemAlloc", "cuMemHostAlloc", "cuMemsetD8Async",
        "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuEventRecord", "cuStreamWaitEvent",
        "cuStreamIsCapturing", "cuLaunchHostFunc"}) {
    int nth = 1;
    for (;; ++nth) {
      fake_ = std::make_unique<LoadedFakeDriver>(LoadFakeDriver({.pace = GetParam()}));
      fake_->driver.FailCall(function, nth, CUDA_ERROR_NOT_SUPPORTED);
      const absl::Status status = use();
      EXPECT_THAT(fake_->driver.misuse(), IsEmpty()) << function << " " << nth;
      EXPECT_THAT(fake_->driver.leaks(), IsEmpty()) << function << " " << nth;
      if (status.ok()) break;
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(function), HasSubstr("CUDA_ERROR_NOT_SUPPORTED")));
      ++failed;
    }
    EXPECT_GT(nth, 1) << function << " is never called";
  }
  EXPECT_GT(failed, 30);
}

// --- Contexts -----------------------------------------------------------------------------------------------------

TEST_P(DeviceOverFake, AContextEndsWithTheLastDeviceOfItsGpu) {
  EXPECT_EQ(fake_->driver.contexts_made(), 1);
  {
    auto second = *CudaDevice::Create(fake_->api, 0);
  }
  EXPECT_EQ(fake_->driver.contexts_made(), 1);
  device_.reset();
  device_ = *CudaDevice::Create(fake_->api, 0);
  EXPECT_EQ(fake_->driver.contexts_made(), 2);
}

// Consecutive devices of a GPU use one context, which holds no memory when it ends.
TEST_P(DeviceOverFake, AContextThatIsKeptServesTheNextDevice) {
  device_.reset();
  fake_ = std::make_unique<LoadedFakeDriver>(LoadFakeDriver({.gpus = 2, .pace = GetParam()}));
  {
    KeptContexts contexts;
    for (int time = 0; time < 3; ++time) {
      for (int gpu : {0, 1}) {
        const auto device = *CudaDevice::Create(fake_->api, gpu);
        ASSERT_TRUE(contexts.Keep(fake_->api, device->gpu()).ok());
        const auto memory = *device->Allocate(kBytes, "memory");
        Numbers found(kCount, 7);
        ASSERT_TRUE(device->CopyToHost(BytesOf(found), memory->data(), kBytes).ok());
        ASSERT_TRUE(device->Synchronize().ok());
        EXPECT_EQ(found, Numbers(kCount, 0));
      }
      EXPECT_EQ(fake_->driver.used(0), 0u) << "a context that is kept frees nothing by its end";
    }
    EXPECT_EQ(fake_->driver.contexts_made(), 2) << "one of each GPU";
  }
  device_ = *CudaDevice::Create(fake_->api, 0);
  EXPECT_EQ(fake_->driver.contexts_made(), 3) << "it was released";
}

// --- Which GPU ----------------------------------------------------------------------------------------------------

TEST_P(DeviceOverFake, RanksTakeGpusInTurn) {
  std::vector<std::string> names;
  std::vector<std::unique_ptr<CudaDevice>> devices;
  for (int rank = 0; rank < 4; ++rank) {
    auto device = CudaDevice::Create(fake_->api, rank);
    ASSERT_TRUE(device.ok()) << device.status();
    names.push_back((*device)->name());
    devices.push_back(*std::move(device));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"cuda:0", "cuda:1", "cuda:2", "cuda:0"}));
  EXPECT_EQ(devices[2]->description(), "cuda:2 (Fake GPU, 256 MiB)");
  // Each works independently of the device used last, and two share a GPU.
  std::vector<Numbers> found(4, Numbers(kCount));
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  for (int rank = 0; rank < 4; ++rank) {
    memory.push_back(*devices[static_cast<size_t>(rank)]->Allocate(kBytes, "memory"));
    Numbers values(kCount, rank);
    ASSERT_TRUE(devices[static_cast<size_t>(rank)]->CopyToDevice(memory.back()->data(), BytesOf(values), kBytes).ok());
  }
  for (size_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(devices[rank]->CopyToHost(BytesOf(found[rank]), memory[rank]->data(), kBytes).ok());
    ASSERT_TRUE(devices[rank]->Synchronize().ok());
    EXPECT_EQ(found[rank], Numbers(kCount, static_cast<int32_t>(rank)));
  }
}

TEST_P(DeviceOverFake, NoGpu) {
  device_.reset();
  fake_ = std::make_unique<LoadedFakeDriver>(LoadFakeDriver({.gpus = 0}));
  const absl::Status status = CudaDevice::Create(fake_->api, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(status), HasSubstr("CUDA_ERROR_NO_DEVICE"));
}

// A thread that has not used the device before can use it.
TEST_P(DeviceOverFake, AnotherThreadMayUseItLater) {
  absl::Status status;
  std::thread other([&] {
    const auto memory = device_->Allocate(kBytes, "memory");
    Numbers host(kCount, 1);
    status = memory.status();
    if (status.ok()) status = device_->CopyToDevice((*memory)->data(), BytesOf(host), kBytes);
    if (status.ok()) status = device_->Synchronize();
  });
  other.join();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace lockstep::cuda
