// Runs that are started and waited for later, on the host and on devices with a queue: they compute the same as
// consecutive runs, at most two are in flight, and the next call reports a failure once.

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backends/device_test_support.h"
#include "backends/executor_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/execution/executor.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr float kUntouched = -7;
const TensorType kStartedWeight{DType::kF32, {3, 5}};

// The inputs and the loss of run `salt`.
struct Call {
  explicit Call(int salt, bool bad = false)
      : x(Values({DType::kF32, {4, 3}}, salt)), y(Values({DType::kI64, {4}}, salt)) {
    if (bad) y.mutable_data<int64_t>()[1] = 5;
  }
  // The inputs are destroyed when it returns.
  absl::StatusOr<int64_t> Start(Executor& executor) {
    const std::vector<NamedInput> inputs = {{"x", {x.type(), x.bytes()}}, {"y", {y.type(), y.bytes()}}};
    const std::vector<NamedResult> results = {{"loss", {{DType::kF32, {}}, &loss}}};
    const absl::StatusOr<int64_t> call = executor.Start(inputs, results);
    for (float& element : x.mutable_data<float>()) element = std::numeric_limits<float>::quiet_NaN();
    for (int64_t& element : y.mutable_data<int64_t>()) element = 99;
    return call;
  }
  Tensor x, y;
  float loss = kUntouched;
};

class StartedRuns : public testing::TestWithParam<Machine> {
 protected:
  // Calls f with an executor of kStep on one rank, with assigned states.
  void WithRank(const std::function<absl::Status(Rank&)>& f, const ExecutorOptions& options = {.check_every = 0}) {
    WithRankOn(GetParam(), f, options);
  }
  static void WithRankOn(Machine machine, const std::function<absl::Status(Rank&)>& f, const ExecutorOptions& options) {
    const Machines machines(machine, 1);
    const absl::Status status = ForEachRank(1, [&](Communicator& world) -> absl::Status {
      ASSIGN_OR_RETURN(const auto rank, Rank::Load(SmallStep(1), Mesh({{"data", 1}}), machines, world, options));
      RETURN_IF_ERROR(Assign(*rank->executor));
      return f(*rank);
    });
    EXPECT_TRUE(status.ok()) << status;
  }
  static absl::Status Assign(Executor& executor) {
    const Tensor w = Values(kStartedWeight, 1);
    return executor.AssignState("w", {w.type(), w.bytes()});
  }
  static bool has_queue() { return GetParam() != Machine::kHost; }
};

INSTANTIATE_TEST_SUITE_P(Machines, StartedRuns,
                         testing::Values(Machine::kHost, Machine::kSimulated, Machine::kCuda, Machine::kLazyCuda),
                         [](const auto& info) { return Name(info.param); });

constexpr int kStartedRuns = 12;

absl::StatusOr<std::vector<float>> LossesAndWeights(Executor& executor, int lag) {
  std::vector<Call> calls;
  for (int run = 0; run < kStartedRuns; ++run) calls.emplace_back(run);
  for (int run = 0; run < kStartedRuns; ++run) {
    ASSIGN_OR_RETURN(const int64_t number, calls[static_cast<size_t>(run)].Start(executor));
    EXPECT_EQ(number, run + 1);
    if (run >= lag) {
      RETURN_IF_ERROR(executor.Wait(number - lag));
      EXPECT_FALSE(executor.IsUnderWay(number - lag));
      EXPECT_NE(calls[static_cast<size_t>(run - lag)].loss, kUntouched) << run;
    }
  }
  RETURN_IF_ERROR(executor.Wait(kStartedRuns));
  EXPECT_EQ(executor.counters().runs, kStartedRuns);
  std::vector<float> found;
  found.reserve(calls.size());
  for (const Call& call : calls) found.push_back(call.loss);
  Tensor w(kStartedWeight);
  RETURN_IF_ERROR(executor.ReadState("w", {w.type(), w.mutable_bytes()}));
  for (float element : w.mutable_data<float>()) found.push_back(element);
  ASSIGN_OR_RETURN(const ConstTensorRef old, executor.ResultOfLastRun("old"));
  for (size_t i = 0; i < 15; ++i) found.push_back(static_cast<const float*>(old.data)[i]);
  return found;
}

TEST_P(StartedRuns, ComputeWhatRunsOneByOneDo) {
  std::vector<float> expected;
  WithRankOn(Machine::kHost,
             [&](Rank& rank) -> absl::Status {
               ASSIGN_OR_RETURN(expected, LossesAndWeights(*rank.executor, 0));
               return absl::OkStatus();
             },
             {.check_every = 0});
  ASSERT_EQ(expected.size(), kStartedRuns + 30u);
  EXPECT_NE(expected[kStartedRuns], Values(kStartedWeight, 1).At(0)) << "nothing was learnt";
  for (int lag : {0, 1, 2, 5}) {
    for (int64_t check_every : {0, 3}) {
      WithRank(
          [&](Rank& rank) -> absl::Status {
            ASSIGN_OR_RETURN(const std::vector<float> found, LossesAndWeights(*rank.executor, lag));
            EXPECT_EQ(found, expected) << "a lag of " << lag;
            return absl::OkStatus();
          },
          {.check_every = check_every});
    }
  }
}

TEST_P(StartedRuns, TwoAreUnderWayAtMost) {
  WithRank([](Rank& rank) -> absl::Status {
    Executor& executor = *rank.executor;
    std::vector<Call> calls;
    for (int run = 0; run < 3; ++run) calls.emplace_back(run);
    RETURN_IF_ERROR(calls[0].Start(executor).status());
    RETURN_IF_ERROR(calls[1].Start(executor).status());
    EXPECT_EQ(executor.IsUnderWay(1), has_queue());
    EXPECT_EQ(executor.IsUnderWay(2), has_queue());
    EXPECT_EQ(executor.counters().runs, has_queue() ? 0 : 2);
    if (has_queue()) {
      EXPECT_EQ(calls[0].loss, kUntouched);
    }
    RETURN_IF_ERROR(calls[2].Start(executor).status());
    EXPECT_FALSE(executor.IsUnderWay(1));
    EXPECT_NE(calls[0].loss, kUntouched);
    EXPECT_EQ(executor.IsUnderWay(2), has_queue());
    EXPECT_EQ(executor.IsUnderWay(3), has_queue());
    if (has_queue()) {
      EXPECT_EQ(calls[1].loss, kUntouched);
    }
    // Readers of states wait for the runs.
    Tensor w(kStartedWeight);
    RETURN_IF_ERROR(executor.ReadState("w", {w.type(), w.mutable_bytes()}));
    EXPECT_FALSE(executor.IsUnderWay(3));
    EXPECT_NE(calls[2].loss, kUntouched);
    EXPECT_EQ(executor.counters().runs, 3);
    return executor.Wait(2);
  });
}

// A GPU that delays the steps of the first run, and records the destinations of copies ahead, or refuses them.
class HeldDevice final : public Device {
 public:
  explicit HeldDevice(Device& device) : Device(device.name(), device.is_host()), device_(device) {}

  Stream* stream() override { return device_.stream(); }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) override {
    return device_.Allocate(bytes, label);
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes, std::string_view label) override {
    return device_.AllocatePinned(bytes, label);
  }
  absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) override {
    return device_.CopyToDevice(device, host, bytes);
  }
  absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) override {
    return device_.CopyToHost(host, device, bytes);
  }
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override {
    return device_.CopyWithin(to, from, bytes);
  }
  absl::Status CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent& after) override {
    if (refuses) return absl::UnavailableError("no more copies");
    ahead.push_back(device);
    return device_.CopyAhead(device, host, bytes, after);
  }
  absl::Status RunOnHost(std::function<absl::Status()> function) override {
    return device_.RunOnHost(std::move(function));
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override { return device_.CreateEvent(); }
  absl::Status Record(DeviceEvent& event) override {
    RETURN_IF_ERROR(device_.Record(event));
    if (held) return absl::OkStatus();
    held = true;
    return device_.RunOnHost([this] {
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return absl::OkStatus();
    });
  }
  absl::Status Await(DeviceEvent& event) override { return device_.Await(event); }
  absl::Status Synchronize() override { return device_.Synchronize(); }

  bool refuses = false;           // refuses copies ahead
  bool held = false;              // true after the first event; then the first run has its inputs
  std::atomic<bool> go{false};    // releases the first run
  std::vector<std::byte*> ahead;  // the destinations of copies ahead

 private:
  Device& device_;
};

TEST(StartedRunsOfAGpu, InputsComeWhileTheRunBeforeComputes) {
  const Machines machines(Machine::kCuda, 1);
  const absl::Status status = ForEachRank(1, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const auto backend, machines.MakeBackend(0));
    ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
    CompileOptions options;
    options.mesh = Mesh({{"data", 1}});
    ASSIGN_OR_RETURN(Executable executable, Compile(SmallStep(1), *backend, options));
    HeldDevice device(*opened.device);
    Call first(1), second(2);  // must outlive the executor
    ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), &world, &device, {.check_every = 0}));
    const Tensor x = second.x;
    RETURN_IF_ERROR(first.Start(*executor).status());
    RETURN_IF_ERROR(second.Start(*executor).status());
    EXPECT_EQ(device.ahead.size(), 4u);
    const auto there = [&] {
      return std::memcmp(machines.FindOnGpu(device.ahead[2], x.num_bytes()), x.bytes(), x.num_bytes()) == 0;
    };
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!there() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(there()) << "the inputs of the second run wait for the first";
    EXPECT_EQ(first.loss, kUntouched);
    device.go = true;
    return executor->Wait(2);
  });
  EXPECT_TRUE(status.ok()) << status;
}

// --- Runs that fail -----------------------------------------------------------------------------------------------

TEST_P(StartedRuns, EachCallTellsAnErrorOnce) {
  Tensor w = Values(kStartedWeight, 1);
  const std::vector<std::function<absl::Status(Executor&)>> next = {
      [](Executor& e) {  // the next one waits only for the run before the last
        Call call(1);
        const absl::StatusOr<int64_t> started = call.Start(e);
        return started.ok() ? e.CheckUsable() : started.status();
      },
      [](Executor& e) { return e.Run({}, {}); },
      [&](Executor& e) { return e.ReadState("w", {w.type(), w.mutable_bytes()}); },
      [&](Executor& e) { return e.AssignState("w", {w.type(), w.bytes()}); },
      [](Executor& e) { return e.ResultOfLastRun("old").status(); },
      [](Executor& e) { return e.CheckUsable(); },
  };
  for (size_t i = 0; i < next.size(); ++i) {
    WithRank([&](Rank& rank) -> absl::Status {
      Executor& executor = *rank.executor;
      RETURN_IF_ERROR(executor.Wait(*Call(0).Start(executor)));
      Call bad(1, /*bad=*/true);
      ASSIGN_OR_RETURN(const int64_t call, bad.Start(executor));
      EXPECT_THAT(MessageOf(next[i](executor)),
                  AllOf(HasSubstr("@step, call 2"), HasSubstr(", which was started before: "),
                        HasSubstr("label 5 at position [1]")))
          << i;
      EXPECT_EQ(rank.queued(), 0u);
      EXPECT_EQ(bad.loss, kUntouched);
      const absl::Status again = executor.CheckUsable();  // on a queue, all steps had begun
      EXPECT_EQ(again.ok(), !has_queue()) << again;
      EXPECT_THAT(MessageOf(again), Not(HasSubstr("which was started before")));
      EXPECT_THAT(MessageOf(executor.ResultOfLastRun("old").status()), HasSubstr("the last run failed"));
      for (int times = 0; times < 2; ++times) EXPECT_THAT(MessageOf(executor.Wait(call)), HasSubstr("label 5"));
      RETURN_IF_ERROR(executor.Wait(1));
      RETURN_IF_ERROR(Assign(executor));
      EXPECT_EQ(executor.counters().runs, 1);
      return executor.Wait(*Call(2).Start(executor));
    });
  }
}

// It is not always known which of the two failed; both are lost, and nothing is written.
TEST_P(StartedRuns, WhatIsUnderWayFailsTogether) {
  WithRank([](Rank& rank) -> absl::Status {
    Executor& executor = *rank.executor;
    Call first(0), bad(1, /*bad=*/true), last(2);
    RETURN_IF_ERROR(first.Start(executor).status());
    RETURN_IF_ERROR(bad.Start(executor).status());
    if (!has_queue()) return absl::OkStatus();
    const absl::StatusOr<int64_t> third = last.Start(executor);
    // The device may have found the error already, when the first run was waited for.
    if (third.ok()) {
      const absl::Status status = executor.Wait(*third);
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("@step, call 2 or 3"), HasSubstr("label 5")));
      EXPECT_EQ(executor.Wait(2), status);
      EXPECT_EQ(executor.Wait(*third), status);
      EXPECT_THAT(MessageOf(executor.CheckUsable()), HasSubstr("call 2 or 3 failed when it was updating the states"));
    } else {
      EXPECT_THAT(MessageOf(third.status()), AllOf(HasSubstr("call 1 or 2"), HasSubstr("label 5")));
    }
    EXPECT_EQ(rank.queued(), 0u);
    EXPECT_EQ(bad.loss, kUntouched);
    EXPECT_EQ(last.loss, kUntouched);
    RETURN_IF_ERROR(rank.opened.device->Synchronize());
    EXPECT_EQ(bad.loss, kUntouched);
    EXPECT_EQ(last.loss, kUntouched);
    return absl::OkStatus();
  });
}

// If several runs fail together, an earlier one may have updated states although the last did not begin.
TEST(StartedRunsOfAGpu, ARunThatDidNotBeginHidesNoUpdate) {
  const Machines machines(Machine::kCuda, 1);
  const absl::Status status = ForEachRank(1, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const auto backend, machines.MakeBackend(0));
    ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
    CompileOptions options;
    options.mesh = Mesh({{"data", 1}});
    ASSIGN_OR_RETURN(Executable executable, Compile(SmallStep(1), *backend, options));
    HeldDevice device(*opened.device);
    device.held = true;  // delays no run
    Call bad(1, /*bad=*/true), last(2);
    ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), &world, &device, {.check_every = 0}));
    RETURN_IF_ERROR(bad.Start(*executor).status());
    device.refuses = true;
    ASSIGN_OR_RETURN(const int64_t call, last.Start(*executor));
    EXPECT_THAT(MessageOf(executor->Wait(call)), AllOf(HasSubstr("call 1 or 2"), HasSubstr("label 5")));
    EXPECT_THAT(MessageOf(executor->CheckUsable()), HasSubstr("call 1 or 2 failed when it was updating the states"));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(StartedRuns, WrongArgumentsLeaveThemAlone) {
  WithRank([](Rank& rank) -> absl::Status {
    Executor& executor = *rank.executor;
    float expected = 0;
    {
      Call call(0);
      RETURN_IF_ERROR(executor.Wait(*call.Start(executor)));
      expected = call.loss;
      RETURN_IF_ERROR(Assign(executor));
    }
    Call call(0);
    ASSIGN_OR_RETURN(const int64_t number, call.Start(executor));
    const Tensor x = Values({DType::kF32, {4, 3}}, 5);
    const std::vector<NamedInput> missing = {{"x", {x.type(), x.bytes()}}};
    EXPECT_THAT(MessageOf(executor.Start(missing, {}).status()), HasSubstr("input y is missing"));
    float loss = 0;
    const std::vector<NamedResult> twice(2, {"loss", {{DType::kF32, {}}, &loss}});
    const Batch batch(4);
    EXPECT_THAT(MessageOf(executor.Start(batch.inputs(), twice).status()), HasSubstr("loss is given memory twice"));
    for (int64_t none : {int64_t{0}, int64_t{-1}, number + 1}) {
      EXPECT_THAT(MessageOf(executor.Wait(none)), HasSubstr("no call " + std::to_string(none) + " to wait for, of 2"));
    }
    RETURN_IF_ERROR(executor.Wait(number));
    EXPECT_EQ(call.loss, expected);
    return executor.CheckUsable();
  });
}

TEST_P(StartedRuns, AnExecutorIsDestroyedWithThem) {
  WithRank([](Rank& rank) -> absl::Status {
    Call first(0), second(1);
    RETURN_IF_ERROR(first.Start(*rank.executor).status());
    RETURN_IF_ERROR(second.Start(*rank.executor).status());
    rank.executor.reset();
    EXPECT_EQ(rank.queued(), 0u);
    first.loss = second.loss = kUntouched;
    RETURN_IF_ERROR(rank.opened.device->Synchronize());
    EXPECT_EQ(first.loss, kUntouched);
    EXPECT_EQ(second.loss, kUntouched);
    return absl::OkStatus();
  });
}

// --- Step by step -------------------------------------------------------------------------------------------------

// Each step is waited for, so that its time is measured and an error names it.
TEST_P(StartedRuns, AProfileWaitsForEachStep) {
  WithRank(
      [](Rank& rank) -> absl::Status {
        Executor& executor = *rank.executor;
        for (int run = 0; run < 3; ++run) {
          Call call(run);
          ASSIGN_OR_RETURN(const int64_t number, call.Start(executor));
          EXPECT_FALSE(executor.IsUnderWay(number));
          EXPECT_NE(call.loss, kUntouched);
        }
        double seconds = 0;
        for (const StepProfile& step : executor.profile()) {
          EXPECT_GT(step.seconds, 0);
          seconds += step.seconds;
        }
        EXPECT_LE(seconds, executor.counters().total);
        Call bad(3, /*bad=*/true);
        ASSIGN_OR_RETURN(const int64_t number, bad.Start(executor));
        EXPECT_THAT(MessageOf(executor.Wait(number)), AllOf(HasSubstr("onnx:/loss"), HasSubstr("label 5")));
        // The run had not reached the update.
        return executor.CheckUsable();
      },
      {.profile = true});
}

TEST(Profile, RanksThatDisagreeAreToldWhenTheyLoad) {
  const Machines machines(Machine::kHost, 2);
  std::vector<absl::Status> all;
  (void)ForEachRank(
      2,
      [&](Communicator& world) {
        return Rank::Load(SmallStep(2), Mesh({{"data", 2}}), machines, world, {.profile = world.rank() == 1}).status();
      },
      &all);
  for (const absl::Status& status : all) {
    EXPECT_THAT(MessageOf(status), HasSubstr("on rank 0: check_every=512 profile=False\n"
                                             "  on rank 1: check_every=512 profile=True"));
  }
}

// Another thread that reads the counters sees whole runs; the thread sanitizer checks that it reads nothing while it is
// written.
TEST_P(StartedRuns, AreCountedWhileAnotherThreadLooks) {
  WithRank([](Rank& rank) -> absl::Status {
    Executor& executor = *rank.executor;
    std::atomic<bool> ended{false};
    std::atomic<int64_t> looks{0};
    std::thread other([&] {
      int64_t runs = 0;
      while (!ended) {
        const ExecutorCounters counters = executor.counters();
        EXPECT_GE(counters.runs, runs);
        EXPECT_GE(counters.outside_kernels(), -1e-9);
        runs = counters.runs;
        double seconds = 0;
        for (const StepProfile& step : executor.profile()) seconds += step.seconds;
        EXPECT_GE(seconds, 0);
        ++looks;
      }
    });
    absl::Status status;
    for (int run = 0; status.ok() && (run < 50 || looks < 50); ++run) {
      Call call(run);
      const absl::StatusOr<int64_t> number = call.Start(executor);
      status = number.ok() ? executor.Wait(*number) : number.status();
    }
    ended = true;
    other.join();
    EXPECT_GE(executor.counters().runs, 50);
    return status;
  });
}

// --- Several ranks ------------------------------------------------------------------------------------------------

// The ranks communicate through their hosts: a run has ended when Start returns, because others may then use the host
// communicator.
TEST_P(StartedRuns, OfRanksThatTalkByTheirHosts) {
  const Machines machines(GetParam(), 3);
  std::barrier through(3);
  std::vector<absl::Status> all;
  (void)ForEachRank(
      3,
      [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(const auto rank, Rank::Load(SmallStep(3), Mesh({{"data", 3}}), machines, world));
        Executor& executor = *rank->executor;
        for (int run = 0; run < 3; ++run) {
          Call call(run);
          ASSIGN_OR_RETURN(const int64_t number, call.Start(executor));
          EXPECT_FALSE(executor.IsUnderWay(number));
          EXPECT_EQ(rank->queued(), 0u);
          RETURN_IF_ERROR(world.Barrier("between runs"));
        }
        through.arrive_and_wait();  // otherwise the failure may reach a peer before its last call
        Call last(3, /*bad=*/world.rank() == 1);
        RETURN_IF_ERROR(last.Start(executor).status());
        EXPECT_EQ(last.loss, kUntouched);
        return executor.CheckUsable();
      },
      &all);
  for (const absl::Status& status : all) {
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("label 5"), HasSubstr("call 4, which was started before")));
  }
}

}  // namespace
}  // namespace lockstep
