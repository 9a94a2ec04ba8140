// States that ranks share: no rank reads a value that another rank is writing, however late a rank is; and removing the
// barriers causes errors.

#include <chrono>
#include <random>
#include <thread>

#include "backends/executor_test_support.h"
#include "core/random_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/in_process.h"
#include "runtime/execution/agreement.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRuns = 3;
constexpr std::chrono::milliseconds kDelay(4);

// Reads the whole weight after its gradient's reduction has started, so that the reduction does not imply that all
// ranks have read it.
constexpr char kLateReader[] = R"(
mesh {data=RANKS}
graph @step(%x: f32[12,24] split(0), state %w: f32[24,24], state %frozen: f32[24,24]) -> (late: f32[12,24] split(0), %w: f32[24,24]) {
  %z = matmul %x, %w : f32[12,24] split(0)
  %dw = matmul %x, %z {transpose_a=true} : f32[24,24] partial(sum)
  %g = reduce_scatter %dw {axis=data, dim=0, kind=sum} : f32[24,24] split(0)
  %y = matmul %z, %frozen : f32[12,24] split(0)
  %late = matmul %y, %w : f32[12,24] split(0)
  %s = shard %w {axis=data, dim=0} : f32[24,24] split(0)
  %n = sgd %s, %g {learning_rate=0.01} : f32[24,24] split(0)
  %w1 = all_gather %n {axis=data, dim=0} : f32[24,24]
  return %late, %w1
}
)";

std::string LateReader(int ranks) { return WithAll(kLateReader, "RANKS", std::to_string(ranks)); }

CompileOptions Shared(int ranks, bool shared = true) {
  CompileOptions options;
  options.mesh = Mesh({{"data", ranks}});
  options.shared_weights = shared;
  options.optimize = false;  // optimization would move the late reader
  return options;
}

// A step that is delayed.
class Late : public Step {
 public:
  explicit Late(std::unique_ptr<Step> step) : Step(step->info()), step_(std::move(step)) {}
  absl::Status Run(StepContext& context) override {
    std::this_thread::sleep_for(kDelay);
    return step_->Run(context);
  }

 private:
  const std::unique_ptr<Step> step_;
};

struct Disturbance {
  int late = -1;           // the rank whose steps are all delayed
  std::string_view taken;  // barriers whose label contains this are removed
};

Tensor Weight(int number) {
  std::mt19937_64 random(static_cast<uint64_t>(number));
  return RandomTensor({DType::kF32, {24, 24}}, random, -0.5, 0.5);
}

void Disturb(Executable& executable, const Disturbance& disturbance, int rank) {
  if (!disturbance.taken.empty()) {
    std::erase_if(executable.steps, [&](const std::unique_ptr<Step>& step) {
      const auto& collective = step->info().collective;
      return collective && collective->op == CollectiveOp::kBarrier &&
             collective->label.find(disturbance.taken) != std::string::npos;
    });
  }
  if (rank != disturbance.late) return;
  for (std::unique_ptr<Step>& step : executable.steps) step = std::make_unique<Late>(std::move(step));
}

// Returns the results of a rank, one after the other, and the weight after the last run.
absl::StatusOr<std::vector<Tensor>> TrainSharing(Communicator& communicator, Device& device, bool shared,
                                                 const Disturbance& disturbance) {
  const int ranks = communicator.size();
  ASSIGN_OR_RETURN(Executable executable, CompileFor(LateReader(ranks), communicator, Shared(ranks, shared)));
  Disturb(executable, disturbance, communicator.rank());
  ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), &communicator, &device));
  for (const char* name : {"w", "frozen"}) {
    const Tensor value = Weight(name[0]);
    RETURN_IF_ERROR(executor->AssignState(name, {value.type(), value.bytes()}));
  }
  std::vector<Tensor> seen;
  const int64_t rows = 12 / ranks;
  for (int run = 0; run < kRuns; ++run) {
    std::mt19937_64 random(static_cast<uint64_t>(100 * run + communicator.rank()));
    const Tensor x = RandomTensor({DType::kF32, {rows, 24}}, random, -0.5, 0.5);
    Tensor& late = seen.emplace_back(TensorType{DType::kF32, {rows, 24}});
    RETURN_IF_ERROR(executor->Run(std::vector<NamedInput>{{"x", {x.type(), x.bytes()}}},
                                  std::vector<NamedResult>{{"late", {late.type(), late.mutable_bytes()}}}));
  }
  RETURN_IF_ERROR(CheckReplicas(*executor, communicator));
  Tensor& w = seen.emplace_back(TensorType{DType::kF32, {24, 24}});
  RETURN_IF_ERROR(executor->ReadState("w", {w.type(), w.mutable_bytes()}));
  return seen;
}

// Returns the results by rank; empty for a rank that fails, which is possible without barriers.
std::vector<std::vector<Tensor>> TrainAll(int ranks, bool shared, const Disturbance& disturbance = {}) {
  std::vector<std::vector<Tensor>> all(static_cast<size_t>(ranks));
  const std::vector<absl::Status> statuses = StatusOfEach(ranks, [&](Communicator& communicator, Device& device) {
    auto seen = TrainSharing(communicator, device, shared, disturbance);
    if (seen.ok()) all[static_cast<size_t>(communicator.rank())] = *std::move(seen);
    return seen.status();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok() || !disturbance.taken.empty()) << status;
  return all;
}

TEST(SharedStates, NoRankSeesWhatAnotherWritesHoweverLateItIs) {
  for (int ranks : {2, 3, 4}) {
    const auto plain = TrainAll(ranks, /*shared=*/false);
    for (int late = -1; late < ranks; ++late) EXPECT_EQ(TrainAll(ranks, true, {late, ""}), plain) << late;
  }
}

// The test above is meaningful only if it fails without barriers.
TEST(SharedStates, ADelayShowsWhereABarrierIsTakenOut) {
  const auto plain = TrainAll(3, /*shared=*/false);
  for (const char* taken : {"have read", "have written"}) {
    int shown = 0;
    for (int late = 0; late < 3; ++late) shown += TrainAll(3, true, {late, taken}) != plain;
    EXPECT_GT(shown, 0) << taken;
  }
}

TEST(SharedStates, BarriersAndPartsAreStepsToBeSeen) {
  const auto communicator = CreateSingle();
  ASSERT_TRUE(communicator.ok());
  const auto executable = CompileFor(LateReader(4), **communicator, Shared(4));
  ASSERT_TRUE(executable.ok()) << executable.status();
  const std::string text = executable->ToString();
  EXPECT_THAT(text, AllOf(HasSubstr("barrier.start         ranks have read the states that they share"),
                          HasSubstr("barrier.wait          ranks have written the states that they share"),
                          HasSubstr("in part of state w"), testing::Not(HasSubstr("all_gather"))));
  ASSERT_EQ(executable->states.size(), 2u) << "a part is none of its own";
  EXPECT_EQ(executable->BytesOf(BufferKind::kState), 2u * 24 * 24 * 4 / 4) << "what counts for one of four ranks";
}

TEST(SharedStates, OneRankHasItsOwn) {
  const auto communicator = CreateSingle();
  ASSERT_TRUE(communicator.ok());
  const auto executable = CompileFor(WithAll(kStep, "[4", "[4"), **communicator, Shared(1));
  ASSERT_TRUE(executable.ok()) << executable.status();
  for (const Buffer& buffer : executable->buffers) EXPECT_EQ(buffer.sharers, 1) << buffer.ToString();
}

TEST(SharedStates, RanksAssignTheSameValueTogether) {
  const auto statuses = StatusOfEach(2, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(LateReader(2), communicator, device, Shared(2)));
    const Tensor value = Weight(communicator.rank());
    return executor->AssignState("w", {value.type(), value.bytes()});
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("assignment of state w, which ranks share"), HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
}

TEST(SharedStates, StayWhereTheRanksHaveThem) {
  const auto statuses = StatusOfEach(2, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(LateReader(2), communicator, device, Shared(2)));
    Tensor value = Weight(0);
    return executor->BindState("w", {value.type(), value.mutable_bytes()}, true);
  });
  for (const absl::Status& status : statuses)
    EXPECT_THAT(MessageOf(status), HasSubstr("state w is shared by ranks of this host, and cannot be bound"));
}

TEST(SharedStates, ARankThatAssignsAloneIsNamed) {
  const auto statuses = StatusOfEach(2, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(LateReader(2), communicator, device, Shared(2)));
    const Tensor value = Weight(0);
    if (communicator.rank() == 1) return executor->AssignState("frozen", {value.type(), value.bytes()});
    const Tensor x(TensorType{DType::kF32, {6, 24}});
    return executor->Run(std::vector<NamedInput>{{"x", {x.type(), x.bytes()}}}, {});
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("assignment of state frozen")));
  }
}

// Ranks that share states and ranks that do not run different programs, also without collectives.
TEST(SharedStates, RanksThatShareAndOthersDiffer) {
  const std::string text = R"(
mesh {data=2}
graph @forward(%x: f32[4,3] split(0), state %w: f32[3,3]) -> (y: f32[4,3] split(0)) {
  %y = matmul %x, %w : f32[4,3] split(0)
  return %y
}
)";
  const auto statuses = StatusOfEach(2, [&](Communicator& communicator, Device& device) -> absl::Status {
    return Load(text, communicator, device, Shared(2, communicator.rank() == 1)).status();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(MessageOf(status), HasSubstr("shared: state w"));
}

TEST(SharedStates, RanksOnDifferentHostsHaveNoMemoryInCommon) {
  auto communicators = CreateInProcessGroups(3, {0, 2});
  ASSERT_TRUE(communicators.ok()) << communicators.status();
  std::vector<std::thread> threads;
  std::vector<absl::Status> statuses(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto device = CreateHostDevice();
      Communicator& communicator = *(*communicators)[rank];
      statuses[rank] = Load(LateReader(3), communicator, *device, Shared(3)).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("states of @step that ranks share"), HasSubstr("rank 0 "),
                                         HasSubstr("rank 2 "), HasSubstr("no memory in common")));
  }
}

}  // namespace
}  // namespace lockstep
