// Tests the communicator of a device through the host: the conformance suite with operands on the device, and the
// behaviour of queued work.

#include "runtime/comm/staged.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "bazel/num_cases.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/conformance/cases.h"
#include "runtime/comm/conformance/device.h"
#include "runtime/comm/conformance/device_world.h"
#include "runtime/cuda/device.h"
#include "runtime/simulated_device.h"
#include "test/fake_cuda/load.h"

namespace lockstep {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

enum class StagedKind { kSimulated, kCuda, kLazyCuda, kSharedCuda };
constexpr StagedKind kKinds[] = {StagedKind::kSimulated, StagedKind::kCuda, StagedKind::kLazyCuda};
using Runs = StagedCommunicator::Runs;

std::string Name(StagedKind kind) {
  const char* const names[] = {"Simulated", "Cuda", "LazyCuda", "SharedCuda"};
  return names[static_cast<int>(kind)];
}

// Devices of one kind. Each rank has its own GPU, except with kSharedCuda, where all ranks share one.
class Devices {
 public:
  Devices(StagedKind kind, int count) : kind_(kind), gpus_(kind == StagedKind::kSharedCuda ? 1 : count) {
    if (kind == StagedKind::kSimulated) return;
    const auto pace = kind == StagedKind::kLazyCuda ? cuda::FakeDriver::Pace::kLazy : cuda::FakeDriver::Pace::kRandom;
    fake_ = std::make_unique<cuda::LoadedFakeDriver>(cuda::LoadFakeDriver({.gpus = gpus_, .pace = pace}));
  }
  ~Devices() {
    if (fake_ == nullptr) return;
    EXPECT_THAT(fake_->driver.misuse(), testing::IsEmpty());
    EXPECT_THAT(fake_->driver.leaks(), testing::IsEmpty());
  }
  // Returns the calls of the fake driver if the devices are GPUs.
  std::vector<std::string> calls() const {
    return fake_ == nullptr ? std::vector<std::string>() : fake_->driver.calls();
  }
  DeviceWorld world() const {
    return {
        .make_device = [this](int number) -> absl::StatusOr<std::unique_ptr<Device>> {
          if (fake_ == nullptr) return std::make_unique<SimulatedDevice>();
          return cuda::CudaDevice::Create(fake_->api, number % gpus_);
        },
        .make_communicator = [this](Communicator& host,
                                    Device& device) -> absl::StatusOr<std::unique_ptr<Communicator>> {
          const Runs runs = kind_ == StagedKind::kSharedCuda ? Runs::kInCaller : Runs::kInStream;
          auto communicator = std::make_unique<StagedCommunicator>(host, device, runs);
          EXPECT_EQ(communicator->transport(), host.transport() + " via host");
          return communicator;
        },
    };
  }

 private:
  const StagedKind kind_;
  const int gpus_;
  std::unique_ptr<cuda::LoadedFakeDriver> fake_;
};

class StagedConformance : public ::testing::TestWithParam<std::tuple<StagedKind, int, ConformanceCase>> {};

TEST_P(StagedConformance, AllRanksSucceed) {
  const auto& [kind, ranks, test] = GetParam();
  const Devices devices(kind, ranks);
  RunConformance(devices.world(), 0, ranks, test);
}

std::vector<std::tuple<StagedKind, int, ConformanceCase>> Table() {
  std::vector<std::tuple<StagedKind, int, ConformanceCase>> table;
  for (StagedKind kind : {StagedKind::kSimulated, StagedKind::kCuda, StagedKind::kLazyCuda, StagedKind::kSharedCuda}) {
    for (int ranks : {1, 2, 3, 4, 7}) {
      if (kind == StagedKind::kCuda && ranks != 2 && ranks != 4) continue;  // each costs as much as a world of threads
      if ((kind == StagedKind::kLazyCuda || kind == StagedKind::kSharedCuda) && ranks != 3) continue;
      if (!TestsEverything() && ranks != (kind == StagedKind::kCuda ? 2 : 3)) continue;
      for (ConformanceCase& test : ComputingCases()) {
        if (ranks >= test.min_ranks) table.emplace_back(kind, ranks, std::move(test));
      }
    }
  }
  return table;
}

INSTANTIATE_TEST_SUITE_P(All, StagedConformance, ::testing::ValuesIn(Table()), [](const auto& info) {
  return Name(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param)) + std::get<2>(info.param).name;
});

class Staged : public ::testing::TestWithParam<StagedKind> {
 protected:
  // One after the other, because there is only one fake driver.
  void ForEachRank(int ranks, const Communicator::Options& options,
                   const std::function<absl::Status(Communicator& host, Device& device)>& rank) {
    const Devices devices(GetParam(), ranks);
    lockstep::ForEachRank(devices.world(), 0, ranks, options,
                          ::testing::UnitTest::GetInstance()->current_test_info()->name(), rank);
  }
};

INSTANTIATE_TEST_SUITE_P(All, Staged, ::testing::ValuesIn(kKinds), [](const auto& info) { return Name(info.param); });

// Runs the cases of the suite that wait, several at once.
TEST_P(Staged, WaitingCases) {
  const auto lots = LotsOfWaitingWorlds();
  EXPECT_GE(lots.size(), 3u);
  for (const auto& lot : lots) {
    const Devices devices(GetParam(), kDevicesOfLot);
    RunLot(devices.world(), lot);
  }
}

// --- Queued calls -------------------------------------------------------------------------------------------------

constexpr int64_t kStagedCount = 1000;
constexpr size_t kStagedBytes = kStagedCount * sizeof(float);

std::byte* BytesOf(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

absl::StatusOr<Communicator::Ticket> StartSum(Communicator& c, Device& device, DeviceMemory& x,
                                              const std::string& label = "sum") {
  return c.Start(Collective::AllReduce(kStagedCount, DType::kF32, ReduceKind::kSum), x.data(), x.data(),
                 {.label = label, .stream = device.stream()});
}

// Queues the collectives of a step with kernels between them, more than a host's communicator can hold at once, and
// synchronizes only at the end. Each sum is that of the values which the stream had written before.
TEST_P(Staged, ManyAreQueuedAtOnce) {
  ForEachRank(3, {.timeout = absl::Seconds(60)}, [](Communicator& host, Device& device) -> absl::Status {
    StagedCommunicator c(host, device);
    ASSIGN_OR_RETURN(auto x, device.Allocate(kStagedBytes, "x"));
    std::vector<std::vector<float>> found(150, std::vector<float>(kStagedCount));
    for (size_t i = 0; i < found.size(); ++i) {
      std::vector<float> values(kStagedCount, static_cast<float>(i) + static_cast<float>(c.rank()));
      RETURN_IF_ERROR(device.CopyToDevice(x->data(), BytesOf(values), kStagedBytes));
      ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartSum(c, device, *x));
      RETURN_IF_ERROR(c.Wait(ticket, device.stream()));
      EXPECT_FALSE(c.Wait(ticket, device.stream()).ok()) << "a second wait";
      RETURN_IF_ERROR(device.CopyToHost(BytesOf(found[i]), x->data(), kStagedBytes));
    }
    RETURN_IF_ERROR(device.Synchronize());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i], std::vector<float>(kStagedCount, static_cast<float>(3 * i + 3))) << i;
    }
    return absl::OkStatus();
  });
}

TEST_P(Staged, RefusesOtherStreams) {
  ForEachRank(1, {}, [](Communicator& host, Device& device) -> absl::Status {
    StagedCommunicator c(host, device);
    ASSIGN_OR_RETURN(auto x, device.Allocate(kStagedBytes, "x"));
    SimulatedDevice other;
    EXPECT_FALSE(StartSum(c, other, *x).ok());
    EXPECT_FALSE(
        c.Start(Collective::AllReduce(1, DType::kF32, ReduceKind::kSum), x->data(), x->data(), {.label = "x"}).ok());
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartSum(c, device, *x));
    EXPECT_FALSE(c.Wait(ticket, other.stream()).ok());
    EXPECT_FALSE(c.Wait(ticket, nullptr).ok());
    RETURN_IF_ERROR(c.Wait(ticket, device.stream()));
    return device.Synchronize();
  });
}

// A broadcast copies only the sent data from the device.
TEST(StagedOnGpus, OnlyTheRootOfABroadcastCopiesToTheHost) {
  const Devices devices(StagedKind::kCuda, 3);
  ForEachRank(devices.world(), 0, 3, {.timeout = absl::Seconds(60)}, "broadcast",
              [](Communicator& host, Device& device) -> absl::Status {
                StagedCommunicator c(host, device);
                ASSIGN_OR_RETURN(auto x, device.Allocate(kStagedBytes, "x"));
                RETURN_IF_ERROR(c.Run(Collective::Broadcast(kStagedCount, DType::kF32, 1), x->data(), x->data(),
                                      {.label = "x", .stream = device.stream()}));
                return device.Synchronize();
              });
  const std::vector<std::string> calls = devices.calls();
  const auto count = [&](const std::string& begin) {
    return std::count_if(calls.begin(), calls.end(),
                         [&](const std::string& call) { return call.rfind(begin, 0) == 0; });
  };
  EXPECT_EQ(count("cuMemcpyDtoHAsync 4000 "), 1);
  EXPECT_EQ(count("cuMemcpyHtoDAsync 4000 "), 3);
}

// A failure in the stream before a collective drops it on this rank only. The rank's next collective must not be taken
// for the dropped one.
TEST_P(Staged, ADroppedCollectiveIsNeverTakenForAnother) {
  ForEachRank(2, {.timeout = absl::Seconds(60)}, [](Communicator& host, Device& device) -> absl::Status {
    StagedCommunicator c(host, device);
    ASSIGN_OR_RETURN(auto x, device.Allocate(kStagedBytes, "x"));
    if (c.rank() == 0) RETURN_IF_ERROR(device.RunOnHost([] { return absl::InvalidArgumentError("label 7"); }));
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartSum(c, device, *x));
    RETURN_IF_ERROR(c.Wait(ticket, device.stream()));
    if (c.rank() == 0) {
      EXPECT_THAT(std::string(device.Synchronize().message()), HasSubstr("label 7"));
      ASSIGN_OR_RETURN(const Communicator::Ticket again, StartSum(c, device, *x));  // the peer is in its first
      RETURN_IF_ERROR(c.Wait(again, device.stream()));
    }
    const absl::Status status = device.Synchronize();
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 on host"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("dropped collectives"));
    EXPECT_THAT(std::string(c.Barrier("after").message()), EndsWith(std::string(status.message())))
        << "the error stays";
    return absl::OkStatus();
  });
}

// The same, detected by a call that is not queued.
TEST_P(Staged, ABarrierIsNeverTakenForADroppedCollective) {
  ForEachRank(2, {.timeout = absl::Seconds(60)}, [](Communicator& host, Device& device) -> absl::Status {
    StagedCommunicator c(host, device);
    ASSIGN_OR_RETURN(auto x, device.Allocate(kStagedBytes, "x"));
    absl::Status status;
    if (c.rank() == 0) {
      RETURN_IF_ERROR(device.RunOnHost([] { return absl::InvalidArgumentError("label 7"); }));
      ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartSum(c, device, *x));
      RETURN_IF_ERROR(c.Wait(ticket, device.stream()));
      EXPECT_THAT(std::string(device.Synchronize().message()), HasSubstr("label 7"));
    }
    status = c.Barrier("next");
    EXPECT_THAT(std::string(status.message()), HasSubstr("dropped collectives"));
    return absl::OkStatus();
  });
}

// Abort from another thread ends a wait in the stream for a peer that never arrives.
TEST_P(Staged, AbortEndsWhatWaitsInTheStream) {
  std::atomic<bool> aborted{false};
  ForEachRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, Device& device) -> absl::Status {
    StagedCommunicator c(host, device);
    ASSIGN_OR_RETURN(auto x, device.Allocate(kStagedBytes, "x"));
    if (c.rank() == 1) {
      while (!aborted) absl::SleepFor(absl::Milliseconds(1));
      EXPECT_THAT(std::string(c.Barrier("after").message()), HasSubstr("enough"));
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartSum(c, device, *x));
    RETURN_IF_ERROR(c.Wait(ticket, device.stream()));
    std::thread other([&] {
      absl::SleepFor(absl::Milliseconds(50));
      c.Abort(absl::CancelledError("enough"));
      aborted = true;
    });
    const absl::Status status = device.Synchronize();
    other.join();
    EXPECT_THAT(std::string(status.message()), HasSubstr("enough"));
    EXPECT_THAT(std::string(c.Barrier("after").message()), EndsWith(std::string(status.message())))
        << "the error stays";
    return absl::OkStatus();
  });
}

// Destroys the communicator before the stream has reached its collectives. They do nothing, peers get an error, and
// nothing hangs.
TEST_P(Staged, QueuedCollectivesOutliveTheirCommunicator) {
  ForEachRank(2, {.timeout = absl::Minutes(5)}, [](Communicator& host, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto x, device.Allocate(kStagedBytes, "x"));
    auto c = std::make_unique<StagedCommunicator>(host, device);
    std::atomic<bool> destroyed{false};
    if (c->rank() == 0) {
      RETURN_IF_ERROR(device.RunOnHost([&destroyed] {
        while (!destroyed) absl::SleepFor(absl::Milliseconds(1));
        return absl::OkStatus();
      }));
    }
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartSum(*c, device, *x));
    RETURN_IF_ERROR(c->Wait(ticket, device.stream()));
    if (c->rank() == 0) {
      c.reset();
      destroyed = true;
      EXPECT_THAT(std::string(device.Synchronize().message()), HasSubstr("was destroyed"));
      EXPECT_THAT(std::string(host.Barrier("after").message()), HasSubstr("in flight"));
    } else {
      EXPECT_THAT(std::string(device.Synchronize().message()), HasSubstr("in flight"));
    }
    return absl::OkStatus();
  });
}

// Destroys the communicator during a collective. The function that waits for the peer ends.
TEST_P(Staged, IsDestroyedWhileItsStreamWaits) {
  if (GetParam() == StagedKind::kSimulated) GTEST_SKIP() << "nothing runs there before it is synchronized";
  std::atomic<bool> destroyed{false};
  ForEachRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto x, device.Allocate(kStagedBytes, "x"));
    auto c = std::make_unique<StagedCommunicator>(host, device);
    if (c->rank() == 0) {
      ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartSum(*c, device, *x));
      RETURN_IF_ERROR(c->Wait(ticket, device.stream()));
      absl::SleepFor(absl::Milliseconds(20));
      c.reset();
      destroyed = true;
      EXPECT_FALSE(device.Synchronize().ok());
    } else {
      while (!destroyed) absl::SleepFor(absl::Milliseconds(1));
      EXPECT_THAT(std::string(c->Barrier("after").message()), HasSubstr("in flight"));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep
