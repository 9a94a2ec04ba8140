// Tests the communicator of GPUs over NCCL, on the fake driver and the fake NCCL: the conformance suite with operands
// on the device, and the behaviour of queued work.

#include "runtime/cuda/nccl_communicator.h"

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
#include "core/check.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/conformance/cases.h"
#include "runtime/comm/conformance/device.h"
#include "runtime/comm/conformance/device_world.h"
#include "runtime/comm/in_process.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/library_search.h"
#include "test/fake_cuda/load.h"

namespace lockstep::cuda {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Pace = FakeDriver::Pace;

std::string NcclName(Pace pace) { return pace == Pace::kRandom ? "Random" : "Lazy"; }

const NcclApi& FakeApi() {
  static const NcclApi* const api = [] {
    auto found = FindNccl({.system = false, .python_folders = {}, .cuda_path = "./test/fake_cuda"});
    LOCKSTEP_CHECK(found.ok()) << found.status();
    return new NcclApi(*std::move(found));
  }();
  return *api;
}

// GPUs of the fakes. At the end, nothing may be leaked or misused.
class Gpus {
 public:
  Gpus(int count, Pace pace) : driver_(LoadFakeDriver({.gpus = count, .pace = pace})) {
    (void)TheFakeNccl().TakeCalls();
  }
  ~Gpus() {
    EXPECT_EQ(TheFakeNccl().live(), 0);
    EXPECT_THAT(driver_.driver.misuse(), IsEmpty());
    EXPECT_THAT(driver_.driver.leaks(), IsEmpty());
  }
  const LoadedFakeDriver& driver() const { return driver_; }
  DeviceWorld world() const {
    return {
        .make_device = [this](int number) { return CudaDevice::Create(driver_.api, number); },
        .make_communicator = [](Communicator& host, Device& device) -> absl::StatusOr<std::unique_ptr<Communicator>> {
          ASSIGN_OR_RETURN(auto communicator,
                           NcclCommunicator::Create(FakeApi(), host, static_cast<CudaDevice&>(device)));
          EXPECT_EQ(communicator->transport(), "nccl");
          return communicator;
        },
    };
  }

 private:
  const LoadedFakeDriver driver_;
};

using Rank = std::function<absl::Status(Communicator& host, CudaDevice& device)>;

void ForEachRankOf(const Gpus& gpus, int ranks, const Communicator::Options& options, const Rank& rank) {
  ForEachRank(gpus.world(), 0, ranks, options, ::testing::UnitTest::GetInstance()->current_test_info()->name(),
              [&](Communicator& host, Device& device) { return rank(host, static_cast<CudaDevice&>(device)); });
}

// Keeps the device's stream busy until `go_on` is true.
absl::Status Block(CudaDevice& device, const std::atomic<bool>& go_on) {
  return device.RunOnHost([&go_on] {
    while (!go_on) absl::SleepFor(absl::Milliseconds(1));
    return absl::OkStatus();
  });
}

class NcclConformance : public ::testing::TestWithParam<std::tuple<Pace, int, ConformanceCase>> {};

TEST_P(NcclConformance, AllRanksSucceed) {
  const auto& [pace, ranks, test] = GetParam();
  const Gpus gpus(ranks, pace);
  RunConformance(gpus.world(), 0, ranks, test);
}

std::vector<std::tuple<Pace, int, ConformanceCase>> NcclTable() {
  std::vector<std::tuple<Pace, int, ConformanceCase>> table;
  for (const auto& [pace, ranks] :
       {std::pair(Pace::kRandom, 1), {Pace::kRandom, 2}, {Pace::kLazy, 2}, {Pace::kRandom, 3}}) {
    if (!TestsEverything() && ranks == (pace == Pace::kRandom ? 2 : 3)) continue;
    for (ConformanceCase& test : ComputingCases()) {
      if (ranks >= test.min_ranks) table.emplace_back(pace, ranks, std::move(test));
    }
  }
  return table;
}

INSTANTIATE_TEST_SUITE_P(All, NcclConformance, ::testing::ValuesIn(NcclTable()), [](const auto& info) {
  return NcclName(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param)) + std::get<2>(info.param).name;
});

class Nccl : public ::testing::TestWithParam<Pace> {
 protected:
  void ForEachNcclRank(int ranks, const Communicator::Options& options, const Rank& rank) {
    const Gpus gpus(ranks, GetParam());
    ForEachRankOf(gpus, ranks, options, rank);
  }
};

INSTANTIATE_TEST_SUITE_P(All, Nccl, ::testing::Values(Pace::kRandom, Pace::kLazy),
                         [](const auto& info) { return NcclName(info.param); });

// Runs the cases of the suite that wait, several at once.
TEST_P(Nccl, WaitingCases) {
  const auto lots = LotsOfWaitingWorlds();
  EXPECT_GE(lots.size(), 3u);
  for (const auto& lot : lots) {
    const Gpus gpus(kDevicesOfLot, GetParam());
    RunLot(gpus.world(), lot);
  }
}

// --- Queued calls -------------------------------------------------------------------------------------------------

constexpr int64_t kNcclCount = 1000;
constexpr size_t kNcclBytes = kNcclCount * sizeof(float);

std::byte* BytesOfSum(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

absl::StatusOr<Communicator::Ticket> StartNcclSum(Communicator& c, CudaDevice& device, std::byte* x,
                                                  const std::string& label = "sum", int64_t count = kNcclCount) {
  return c.Start(Collective::AllReduce(count, DType::kF32, ReduceKind::kSum), x, x,
                 {.label = label, .stream = device.stream()});
}

// Nothing is synchronized before the end. Each sum is that of the values which the stream had written before, and each
// copy reads the result of the sum: start and wait order both streams.
TEST_P(Nccl, ManyAreQueuedAtOnce) {
  ForEachNcclRank(3, {.timeout = absl::Seconds(60)}, [](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, c->Allocate(kNcclBytes, "x"));
    std::vector<std::vector<float>> found(150, std::vector<float>(kNcclCount));
    for (size_t i = 0; i < found.size(); ++i) {
      std::vector<float> values(kNcclCount, static_cast<float>(i) + static_cast<float>(c->rank()));
      RETURN_IF_ERROR(device.CopyToDevice(x->data(), BytesOfSum(values), kNcclBytes));
      ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartNcclSum(*c, device, x->data()));
      RETURN_IF_ERROR(c->Wait(ticket, device.stream()));
      EXPECT_FALSE(c->Wait(ticket, device.stream()).ok()) << "a second wait";
      RETURN_IF_ERROR(device.CopyToHost(BytesOfSum(found[i]), x->data(), kNcclBytes));
    }
    RETURN_IF_ERROR(device.Synchronize());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i], std::vector<float>(kNcclCount, static_cast<float>(3 * i + 3))) << i;
    }
    return absl::OkStatus();
  });
}

// NCCL's kernels of two communicators wait for each other if two GPUs start them in different orders. A GPU starts them
// in the order of the calls, whatever order their waits have.
TEST_P(Nccl, CollectivesOfTwoCommunicatorsHaveTheOrderOfTheirStarts) {
  ForEachNcclRank(2, {.timeout = absl::Seconds(60)}, [](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto other, c->Split(0, "another axis"));
    ASSIGN_OR_RETURN(auto x, c->Allocate(kNcclBytes, "x"));
    ASSIGN_OR_RETURN(auto y, other->Allocate(kNcclBytes, "y"));
    for (int i = 0; i < 20; ++i) {
      ASSIGN_OR_RETURN(const Communicator::Ticket first, StartNcclSum(*c, device, x->data()));
      ASSIGN_OR_RETURN(const Communicator::Ticket second, StartNcclSum(*other, device, y->data()));
      if (c->rank() == 0) RETURN_IF_ERROR(other->Wait(second, device.stream()));
      RETURN_IF_ERROR(c->Wait(first, device.stream()));
      if (c->rank() == 1) RETURN_IF_ERROR(other->Wait(second, device.stream()));
    }
    return device.Synchronize();
  });
}

// With different orders of the starts, ranks wait for each other: not for ever, but until the timeout. This is why
// ranks compare the order over all axes when they load a program (backends/planning/certificate.h).
TEST_P(Nccl, DifferentOrdersOfStartsEndWithTheTimeout) {
  ForEachNcclRank(2, {.timeout = absl::Milliseconds(300)}, [](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto other, c->Split(0, "another axis"));
    ASSIGN_OR_RETURN(auto x, device.Allocate(kNcclBytes, "x"));
    ASSIGN_OR_RETURN(auto y, device.Allocate(kNcclBytes, "y"));
    const bool swaps = c->rank() == 1;
    Communicator &first = swaps ? *other : *c, &second = swaps ? *c : *other;
    ASSIGN_OR_RETURN(const Communicator::Ticket a, StartNcclSum(first, device, x->data()));
    ASSIGN_OR_RETURN(const Communicator::Ticket b, StartNcclSum(second, device, y->data()));
    RETURN_IF_ERROR(first.Wait(a, device.stream()));
    RETURN_IF_ERROR(second.Wait(b, device.stream()));
    EXPECT_THAT(std::string(device.Synchronize().message()), HasSubstr("a GPU that waits for its peers"));
    return absl::OkStatus();
  });
}

TEST_P(Nccl, RefusesOtherStreams) {
  ForEachNcclRank(2, {}, [](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, device.Allocate(kNcclBytes, "x"));
    const Communicator::Call no_stream{.label = "x"};
    EXPECT_TRUE(absl::IsInvalidArgument(
        c->Start(Collective::AllReduce(1, DType::kF32, ReduceKind::kSum), x->data(), x->data(), no_stream).status()));
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartNcclSum(*c, device, x->data()));
    EXPECT_FALSE(c->Wait(ticket, nullptr).ok());
    RETURN_IF_ERROR(c->Wait(ticket, device.stream()));
    return device.Synchronize();
  });
}

// While a rank waits for its GPU, an idle peer aborts. The wait ends with the peer's name.
TEST_P(Nccl, AnAbortEndsWhatTheDeviceWaitsFor) {
  std::atomic<bool> queued{false};
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, device.Allocate(kNcclBytes, "x"));
    std::atomic<bool> go_on{false};
    // The second rank's GPU does not reach the collective.
    if (c->rank() == 1) {
      RETURN_IF_ERROR(Block(device, go_on));
    }
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartNcclSum(*c, device, x->data()));
    RETURN_IF_ERROR(c->Wait(ticket, device.stream()));
    if (c->rank() == 0) {
      queued = true;
      const absl::Time begin = absl::Now();
      const absl::Status status = device.Synchronize();
      EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 on host"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("enough"));
      EXPECT_EQ(c->Barrier("after"), status) << "the error stays";
      EXPECT_EQ(StartNcclSum(*c, device, x->data()).status(), status);
    } else {
      while (!queued) absl::SleepFor(absl::Milliseconds(1));
      absl::SleepFor(absl::Milliseconds(20));
      c->Abort(absl::CancelledError("enough"));
      go_on = true;
      EXPECT_FALSE(device.Synchronize().ok());
    }
    return absl::OkStatus();
  });
}

// A GPU does not reach a collective within the timeout, while its host does something else.
TEST_P(Nccl, ALateGpuIsNamed) {
  std::atomic<bool> go_on{false};
  ForEachNcclRank(3, {.timeout = absl::Milliseconds(300)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, device.Allocate(kNcclBytes, "x"));
    if (c->rank() == 1) {
      RETURN_IF_ERROR(Block(device, go_on));
    }
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartNcclSum(*c, device, x->data()));
    RETURN_IF_ERROR(c->Wait(ticket, device.stream()));
    if (c->rank() == 1) {
      while (c->CheckPeers().ok()) absl::SleepFor(absl::Milliseconds(1));
      go_on = true;
    }
    const absl::Status status = device.Synchronize();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(" for rank 1 on host"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("a GPU that waits for its peers"));
    return absl::OkStatus();
  });
}

// In different waits: rank 0 for the launch of a collective, rank 1 for its GPU. Rank 2 is in no wait, or in one, too.
TEST_P(Nccl, RanksThatAreLateApartSayTheSame) {
  for (const int waiting : {1, 2}) {
    std::atomic<int> started{0};
    std::atomic<bool> go_on{false};
    ForEachNcclRank(3, {.timeout = absl::Milliseconds(300)},
                    [&](Communicator& host, CudaDevice& device) -> absl::Status {
                      ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
                      ASSIGN_OR_RETURN(auto x, device.Allocate(kNcclBytes, "x"));
                      absl::Status status;
                      if (c->rank() == 0) {
                        while (started < waiting) absl::SleepFor(absl::Milliseconds(1));
                        TheFakeNccl().FailCall("launch", 1, ncclInProgress);
                        status = StartNcclSum(*c, device, x->data()).status();
                      } else if (c->rank() <= waiting) {
                        RETURN_IF_ERROR(StartNcclSum(*c, device, x->data()).status());
                        ++started;
                        RETURN_IF_ERROR(Block(device, go_on));
                        status = device.Synchronize();
                        go_on = true;
                      } else {
                        while ((status = c->CheckPeers()).ok()) absl::SleepFor(absl::Milliseconds(1));
                      }
                      EXPECT_TRUE(waiting == 1 ? absl::IsDeadlineExceeded(status) : absl::IsAborted(status)) << status;
                      EXPECT_THAT(std::string(status.message()),
                                  HasSubstr(waiting == 1 ? " for rank 2 on host" : "all ranks have waited for 300ms"));
                      return absl::OkStatus();
                    });
  }
}

// The world fails during a collective of a communicator from Split: NCCL's abort of the world's communicator waits for
// it.
TEST_P(Nccl, AnAbortOfTheWorldEndsWhatItsPartsWaitFor) {
  std::atomic<bool> queued{false}, go_on{false};
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto part, c->Split(0, "part"));
    ASSIGN_OR_RETURN(auto x, part->Allocate(kNcclBytes, "x"));
    if (c->rank() == 1) {
      RETURN_IF_ERROR(Block(device, go_on));
    }
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartNcclSum(*part, device, x->data()));
    RETURN_IF_ERROR(part->Wait(ticket, device.stream()));
    const absl::Time begin = absl::Now();
    if (c->rank() == 0) {
      queued = true;
      EXPECT_THAT(std::string(device.Synchronize().message()), HasSubstr("enough"));
      x.reset(), part.reset(), c.reset();
      EXPECT_LT(absl::Now() - begin, absl::Seconds(8));
    } else {
      while (!queued) absl::SleepFor(absl::Milliseconds(1));
      c->Abort(absl::CancelledError("enough"));
      EXPECT_LT(absl::Now() - begin, absl::Seconds(8)) << "it takes a moment";
      go_on = true;
    }
    return absl::OkStatus();
  });
}

// Also if a call of the world detects the failure, and not a wait for the GPU, which checks all communicators.
TEST_P(Nccl, ACallThatFailsEndsWhatPartsWaitFor) {
  std::atomic<bool> queued{false}, go_on{false};
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto part, c->Split(0, "part"));
    ASSIGN_OR_RETURN(auto x, part->Allocate(kNcclBytes, "x"));
    if (c->rank() == 1) {
      RETURN_IF_ERROR(Block(device, go_on));
    }
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartNcclSum(*part, device, x->data()));
    RETURN_IF_ERROR(part->Wait(ticket, device.stream()));
    if (c->rank() == 0) {
      queued = true;
      EXPECT_THAT(std::string(c->Barrier("learns of it").message()), HasSubstr("enough"));
      const absl::Time begin = absl::Now();
      const auto state = [&] { return device.api().StreamQuery(device.stream()->handle()); };
      while (state() == CUDA_ERROR_NOT_READY && absl::Now() - begin < absl::Seconds(8)) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      EXPECT_EQ(state(), CUDA_SUCCESS);
    } else {
      while (!queued) absl::SleepFor(absl::Milliseconds(1));
      c->Abort(absl::CancelledError("enough"));
      go_on = true;
    }
    return absl::OkStatus();
  });
}

// After an error, the collective may still use operands that the caller then frees.
TEST_P(Nccl, OperandsAreKeptUntilAnAbortHasEnded) {
  static std::atomic<bool> ends;
  static std::atomic<int> freed;
  ends = false;
  NcclApi api = FakeApi();
  api.CommAbort = [](ncclComm_t comm) {
    while (!ends) absl::SleepFor(absl::Milliseconds(1));
    return FakeApi().CommAbort(comm);
  };
  const Gpus gpus(1, GetParam());
  static const DriverApi* driver;
  driver = &gpus.driver().api;
  DriverApi counts = *driver;
  counts.MemFree = [](CUdeviceptr memory) {
    ++freed;
    return driver->MemFree(memory);
  };
  auto world = CreateInProcess(1, {});
  ASSERT_TRUE(world.ok()) << world.status();
  const auto device = *CudaDevice::Create(counts, 0);
  auto c = *NcclCommunicator::Create(api, *(*world)[0], *device);
  auto x = *device->Allocate(kNcclBytes, "x");
  ASSERT_TRUE(device->Synchronize().ok());
  c->Abort(absl::CancelledError("enough"));
  freed = 0;
  x.reset();
  (void)device->Synchronize();
  EXPECT_EQ(freed, 0);
  ends = true;
  while (TheFakeNccl().live() > 0) absl::SleepFor(absl::Milliseconds(1));
  const absl::Time begin = absl::Now();
  while (freed == 0 && absl::Now() - begin < absl::Seconds(30)) (void)device->Synchronize();
  EXPECT_EQ(freed, 1);
}

// Returns a graph with a sum along each communicator, each of which knows the graph.
absl::StatusOr<std::shared_ptr<LaunchableGraph>> CaptureSums(const std::vector<NcclCommunicator*>& communicators,
                                                             CudaDevice& device, std::byte* x) {
  const DriverApi& api = device.api();
  const CUstream stream = device.stream()->handle();
  auto graph = std::make_shared<LaunchableGraph>(device);
  for (NcclCommunicator* c : communicators) c->AddGraph(graph);
  RETURN_IF_ERROR(api.Check(api.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin"));
  for (NcclCommunicator* c : communicators) {
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartNcclSum(*c, device, x));
    RETURN_IF_ERROR(c->Wait(ticket, device.stream()));
  }
  RETURN_IF_ERROR(graph->EndCapture(stream, /*keeps=*/true));
  for (NcclCommunicator* c : communicators) c->DropCaptured();
  return graph;
}

// NCCL's abort must come after the graphs: those that the communicator knows are dropped first, even if others hold
// them. The fake records another order as misuse, in this test and in the others.
TEST_P(Nccl, AGraphGoesBeforeItsCommunicator) {
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, c->Allocate(kNcclBytes, "x"));
    ASSIGN_OR_RETURN(const auto graph, CaptureSums({c.get()}, device, x->data()));
    RETURN_IF_ERROR(graph->Launch(device.stream()->handle()));
    RETURN_IF_ERROR(device.Synchronize());
    const absl::Time begin = absl::Now();
    c.reset();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(8));
    EXPECT_THAT(std::string(graph->Launch(device.stream()->handle()).message()), HasSubstr("was dropped"));
    return absl::OkStatus();
  });
}

// A graph with collectives of two communicators is dropped before the first of them is aborted, whichever it is. So are
// the graphs of other programs, which are aborted together with it after a failure.
TEST_P(Nccl, AGraphGoesBeforeTheFirstOfItsCommunicators) {
  for (const bool fails : {false, true}) {
    std::atomic<int> captured_on{0};
    ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
      ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
      std::vector<std::unique_ptr<Communicator>> parts;
      std::vector<NcclCommunicator*> axes;
      for (const char* label : {"one axis", "another axis", "the axis of another program"}) {
        ASSIGN_OR_RETURN(auto part, c->Split(0, label));
        axes.push_back(static_cast<NcclCommunicator*>(part.get()));
        parts.push_back(std::move(part));
      }
      ASSIGN_OR_RETURN(auto x, c->Allocate(kNcclBytes, "x"));
      ASSIGN_OR_RETURN(const auto of_two, CaptureSums({axes[0], axes[1]}, device, x->data()));
      ASSIGN_OR_RETURN(const auto of_other, CaptureSums({axes[2]}, device, x->data()));
      for (const auto& graph : {of_two, of_other}) RETURN_IF_ERROR(graph->Launch(device.stream()->handle()));
      RETURN_IF_ERROR(device.Synchronize());
      ++captured_on;
      while (captured_on < 2) absl::SleepFor(absl::Milliseconds(1));
      if (fails) c->Abort(absl::CancelledError("enough"));
      else parts[1].reset();
      EXPECT_THAT(std::string(of_two->Launch(device.stream()->handle()).message()), HasSubstr("was dropped"));
      EXPECT_EQ(of_other->Launch(device.stream()->handle()).ok(), !fails);
      if (!fails) RETURN_IF_ERROR(device.Synchronize());
      return absl::OkStatus();
    });
  }
}

// A launch that waits for a peer does not keep the graph from being dropped, and ends with the abort.
TEST_P(Nccl, AnAbortDropsAGraphThatIsRunning) {
  std::atomic<int> captured_on{0}, ended_on{0};
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, c->Allocate(kNcclBytes, "x"));
    ASSIGN_OR_RETURN(const auto graph, CaptureSums({c.get()}, device, x->data()));
    ++captured_on;
    while (captured_on < 2) absl::SleepFor(absl::Milliseconds(1));
    if (c->rank() == 0) {
      RETURN_IF_ERROR(graph->Launch(device.stream()->handle()));
      absl::SleepFor(absl::Milliseconds(20));
      c->Abort(absl::CancelledError("enough"));
      EXPECT_THAT(std::string(device.Synchronize().message()), HasSubstr("enough"));
    }
    ++ended_on;
    while (ended_on < 2) absl::SleepFor(absl::Milliseconds(1));
    return absl::OkStatus();
  });
}

// Also if the aborting thread has not used the GPU before.
TEST_P(Nccl, AnotherThreadsAbortDropsTheGraph) {
  std::atomic<int> captured_on{0};
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, c->Allocate(kNcclBytes, "x"));
    ASSIGN_OR_RETURN(const auto graph, CaptureSums({c.get()}, device, x->data()));
    ++captured_on;
    while (captured_on < 2) absl::SleepFor(absl::Milliseconds(1));
    std::thread([&] { c->Abort(absl::CancelledError("enough")); }).join();
    EXPECT_THAT(std::string(graph->Launch(device.stream()->handle()).message()), HasSubstr("was dropped"));
    // Also for a graph that is added after the abort, for which it would wait for ever.
    const auto late = std::make_shared<LaunchableGraph>(device);
    c->AddGraph(late);
    EXPECT_THAT(std::string(late->Launch(device.stream()->handle()).message()), HasSubstr("was dropped"));
    return absl::OkStatus();
  });
}

// Nothing that was captured is left after a drop during the capture, for which an abort waits, or without `keeps`.
TEST(NcclCapture, AGraphThatNobodyKeepsIsNotMade) {
  for (const bool drops : {true, false}) {
    const LoadedFakeDriver driver = LoadFakeDriver({.gpus = 1});
    const auto device = CudaDevice::Create(driver.api, 0);
    ASSERT_TRUE(device.ok()) << device.status();
    const CUstream stream = (*device)->stream()->handle();
    LaunchableGraph graph(**device);
    ASSERT_EQ(driver.api.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    if (drops) graph.Drop();
    const absl::Status status = graph.EndCapture(stream, /*keeps=*/drops);
    if (drops) EXPECT_THAT(std::string(status.message()), HasSubstr("was dropped"));
    else EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(driver.driver.calls(), Not(Contains(HasSubstr("cuGraphInstantiate"))));
    EXPECT_THAT(driver.driver.misuse(), IsEmpty());
  }
}

// A capture with a collective fails: the collective is no longer in flight, and does not affect the next one.
TEST(NcclCapture, WhatFailedInItIsForgotten) {
  const LoadedFakeDriver driver = LoadFakeDriver({.gpus = 1});  // to it, the failure is misuse
  const auto world = CreateInProcess(1);
  ASSERT_TRUE(world.ok()) << world.status();
  {
    const auto device = CudaDevice::Create(driver.api, 0);
    ASSERT_TRUE(device.ok()) << device.status();
    auto c = NcclCommunicator::Create(FakeApi(), *(*world)[0], **device);
    ASSERT_TRUE(c.ok()) << c.status();
    const auto x = (*device)->Allocate(kNcclBytes, "x");
    ASSERT_TRUE(x.ok()) << x.status();
    const CUstream stream = (*device)->stream()->handle();
    ASSERT_EQ(driver.api.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    const auto captured = StartNcclSum(**c, **device, (*x)->data());
    EXPECT_TRUE(captured.ok()) << captured.status();
    CUgraph graph = nullptr;
    EXPECT_NE(driver.api.StreamEndCapture(stream, &graph), CUDA_SUCCESS) << "nobody has waited for the sum";
    (*c)->DropCaptured();
    EXPECT_THAT(std::string((*c)->Wait(*captured, (*device)->stream()).message()), HasSubstr("is not in flight"));
    const auto next = StartNcclSum(**c, **device, (*x)->data());
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_TRUE((*c)->Wait(*next, (*device)->stream()).ok());
    EXPECT_TRUE((*device)->Synchronize().ok());
  }
  EXPECT_TRUE((*world)[0]->Barrier("after").ok()) << "its end found a collective in flight";
  EXPECT_THAT(driver.driver.leaks(), IsEmpty());
}

// An abort of NCCL that does not end: after ten seconds, destruction continues without it. That of the GPU's other
// communicators does not wait.
TEST(NcclEnd, DoesNotWaitForEver) {
  static std::atomic<bool> ends;
  ends = false;
  NcclApi api = FakeApi();
  api.CommAbort = [](ncclComm_t comm) {
    while (!ends) absl::SleepFor(absl::Milliseconds(1));
    return FakeApi().CommAbort(comm);
  };
  const Gpus gpus(1, Pace::kRandom);
  testing::internal::CaptureStderr();
  ForEachRankOf(gpus, 1, {}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(api, host, device));
    ASSIGN_OR_RETURN(auto part, c->Split(0, "part"));
    const absl::Time begin = absl::Now();
    part.reset();
    EXPECT_GT(absl::Now() - begin, absl::Seconds(9));
    c.reset();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(18)) << "the GPU's second communicator waits for ten seconds, too";
    ends = true;
    while (TheFakeNccl().live() > 0) absl::SleepFor(absl::Milliseconds(1));
    return absl::OkStatus();
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("ncclCommAbort has not ended after 10 s"));
}

// Memory does not wait for it again, either: after one wait for a GPU was too short, later ones return at once.
TEST(NcclEnd, WaitsOnceForAGpuThatIsStuck) {
  const LoadedFakeDriver driver = LoadFakeDriver({.gpus = 1});
  std::atomic<bool> go_on{false};
  const auto world = CreateInProcess(1);
  ASSERT_TRUE(world.ok()) << world.status();
  const auto device = CudaDevice::Create(driver.api, 0);
  ASSERT_TRUE(device.ok()) << device.status();
  auto c = NcclCommunicator::Create(FakeApi(), *(*world)[0], **device);
  ASSERT_TRUE(c.ok()) << c.status();
  auto x = (*c)->Allocate(kNcclBytes, "x"), y = (*c)->Allocate(kNcclBytes, "y");
  ASSERT_TRUE(x.ok() && y.ok());
  const absl::Status queued = (*device)->RunOnHost([&] {
    while (!go_on) absl::SleepFor(absl::Milliseconds(1));
    return absl::OkStatus();
  });
  EXPECT_TRUE(queued.ok()) << queued;
  const absl::Time begin = absl::Now();
  testing::internal::CaptureStderr();
  x->reset(), y->reset();
  EXPECT_GT(absl::Now() - begin, absl::Seconds(9));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("memory of a collective that does not end is not freed"));
  go_on = true;
}

TEST_P(Nccl, AnErrorOfNcclReachesAllRanks) {
  std::atomic<int> queued{0};
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, device.Allocate(kNcclBytes, "x"));
    RETURN_IF_ERROR(device.RunOnHost([&] {
      while (queued < 2) absl::SleepFor(absl::Milliseconds(1));
      absl::SleepFor(absl::Milliseconds(100));
      return absl::OkStatus();
    }));
    ASSIGN_OR_RETURN(const Communicator::Ticket ticket, StartNcclSum(*c, device, x->data()));
    RETURN_IF_ERROR(c->Wait(ticket, device.stream()));
    if (++queued == 2) TheFakeNccl().SetAsyncError(ncclRemoteError);
    const absl::Status status = device.Synchronize();
    EXPECT_THAT(std::string(status.message()), HasSubstr("gave up: NCCL: a collective that was in flight"));
    return absl::OkStatus();
  });
  TheFakeNccl().SetAsyncError(ncclSuccess);
}

// If one rank cannot join, all ranks get an error before anything is queued.
TEST_P(Nccl, ARankThatCannotJoinIsNamed) {
  ForEachNcclRank(3, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    if (host.rank() == 0) TheFakeNccl().FailCall("ncclGetUniqueId", 1, ncclSystemError);
    const absl::Status status = NcclCommunicator::Create(FakeApi(), host, device).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("ncclGetUniqueId"));
    RETURN_IF_ERROR(host.Barrier("failed"));
    // Of the first rank that calls it.
    if (host.rank() == 0) TheFakeNccl().FailCall("ncclCommInitRankConfig", 1, ncclSystemError);
    RETURN_IF_ERROR(host.Barrier("set"));
    const absl::Status again = NcclCommunicator::Create(FakeApi(), host, device).status();
    EXPECT_THAT(std::string(again.message()), HasSubstr("gave up: NCCL: ncclCommInitRankConfig"));
    return absl::OkStatus();
  });
}

// A rank that dies (here: aborts) while NCCL creates its communicator ends this on the other ranks.
TEST_P(Nccl, ARankThatFailsMeanwhileEndsTheStart) {
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    if (host.rank() == 1) {
      RETURN_IF_ERROR(host.AllGatherBytes("", "making the stream of collectives").status());
      RETURN_IF_ERROR(host.AllGatherBytes("", "the id of NCCL's communicator").status());
      absl::SleepFor(absl::Milliseconds(20));
      host.Abort(absl::CancelledError("no GPU any more"));
      return absl::OkStatus();
    }
    const absl::Status status = NcclCommunicator::Create(FakeApi(), host, device).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 on host"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("no GPU any more"));
    return absl::OkStatus();
  });
}

// The GPU starts with collectives, because peers wait for them.
TEST_P(Nccl, CollectivesComeBeforeKernels) {
  const Gpus gpus(1, GetParam());
  ForEachRankOf(gpus, 1, {}, [](Communicator& host, CudaDevice& device) {
    return NcclCommunicator::Create(FakeApi(), host, device).status();
  });
  EXPECT_THAT(gpus.driver().driver.calls(), Contains("cuStreamCreateWithPriority -1").Times(1));
  EXPECT_THAT(gpus.driver().driver.calls(), Contains("cuStreamCreateWithPriority 0").Times(2));
}

// Memory comes from NCCL and is registered. If NCCL cannot allocate it, it comes from the device.
TEST_P(Nccl, MemoryIsRegisteredWhereThatIsSupported) {
  ForEachNcclRank(1, {}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    ASSIGN_OR_RETURN(auto x, c->Allocate(kNcclBytes, "x"));
    EXPECT_THAT(TheFakeNccl().TakeCalls(), Contains("ncclCommRegister 4000"));
    EXPECT_EQ(x->why_copied(), "");
    TheFakeNccl().FailCall("ncclMemAlloc", 1, ncclInvalidUsage);
    ASSIGN_OR_RETURN(auto y, c->Allocate(kNcclBytes, "y"));
    EXPECT_THAT(y->why_copied(), testing::HasSubstr("ncclMemAlloc: "));
    TheFakeNccl().FailCall("ncclCommRegister", 1, ncclInvalidUsage);
    ASSIGN_OR_RETURN(auto z, c->Allocate(kNcclBytes, "z"));
    EXPECT_THAT(z->why_copied(), testing::HasSubstr("ncclCommRegister: "));
    TheFakeNccl().LetBuffersBeRegistered(false);
    ASSIGN_OR_RETURN(auto none, c->Allocate(kNcclBytes, "none"));
    TheFakeNccl().LetBuffersBeRegistered(true);
    EXPECT_THAT(none->why_copied(), testing::HasSubstr("registers nothing"));
    for (RegisteredMemory* memory : {x.get(), y.get(), z.get()}) {
      std::vector<float> values(kNcclCount, 2.f);
      RETURN_IF_ERROR(device.CopyToHost(BytesOfSum(values), memory->data(), kNcclBytes));
      RETURN_IF_ERROR(device.Synchronize());
      EXPECT_EQ(values, std::vector<float>(kNcclCount, 0.f));
    }
    c.reset();  // memory may outlive it
    return absl::OkStatus();
  });
}

// A call that is only compared does not touch the device, and detects ranks with another call.
TEST_P(Nccl, ComparesWithoutMovingAnything) {
  ForEachNcclRank(2, {.timeout = absl::Minutes(5)}, [&](Communicator& host, CudaDevice& device) -> absl::Status {
    ASSIGN_OR_RETURN(auto c, NcclCommunicator::Create(FakeApi(), host, device));
    RETURN_IF_ERROR(host.Barrier("made"));
    (void)TheFakeNccl().TakeCalls();
    const auto compare = [&](const char* label, int64_t count) {
      return c->Run(Collective::AllReduce(count, DType::kF32, ReduceKind::kSum), nullptr, nullptr,
                    {.label = label, .compared_only = true});
    };
    RETURN_IF_ERROR(compare("step", 1000));
    EXPECT_THAT(TheFakeNccl().TakeCalls(), IsEmpty());
    const absl::Status status = compare("step", 1000 + c->rank());
    EXPECT_THAT(std::string(status.message()), HasSubstr("f32[1001]"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep::cuda
