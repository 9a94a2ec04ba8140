// Settings, the numbers of a program that change between runs: on the host, on a simulated device that enforces the
// rules of GPU memory, and on a fake GPU, on one rank and on several.

#include <limits>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/device_test_support.h"
#include "backends/executor_test_support.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/execution/executor.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kScaled[] = R"(
graph @scaled(setting %rate: f64[] in [0.0, 8.0) = 2.0, setting %shift: f64[] in (-inf, inf) = 0.0, %x: f32[2], state %w: f32[2]) -> (y: f32[2]) {
  %narrow = convert %rate {dtype=f32} : f32[]
  %rates = broadcast %narrow {dims=[], shape=[2]} : f32[2]
  %scaled = mul %w, %rates : f32[2]
  %moved = add %scaled, %x : f32[2]
  %s = convert %shift {dtype=f32} : f32[]
  %shifts = broadcast %s {dims=[], shape=[2]} : f32[2]
  %y = add %moved, %shifts : f32[2]
  return %y
}
)";
const TensorType kTwo{DType::kF32, Shape({2})};

Graph Parsed(const std::string& text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  return *std::move(graph);
}

class SettingsTest : public testing::TestWithParam<Machine> {
 protected:
  // Calls f with an executor of kScaled in which w is [1, 2].
  static void WithExecutor(const std::function<absl::Status(Executor&)>& f) {
    const Machines machines(GetParam(), 1);
    const absl::Status status = ForEachRank(1, [&](Communicator& world) -> absl::Status {
      ASSIGN_OR_RETURN(const auto rank, Rank::Load(Parsed(kScaled), Mesh({{"data", 1}}), machines, world));
      const std::vector<float> w = {1, 2};
      RETURN_IF_ERROR(rank->executor->AssignState("w", {kTwo, w.data()}));
      return f(*rank->executor);
    });
    EXPECT_TRUE(status.ok()) << status;
  }
  // Starts a run with x = [100, 200].
  static absl::StatusOr<int64_t> Start(Executor& executor, std::vector<float>& y) {
    const std::vector<float> x = {100, 200};
    const std::vector<NamedInput> inputs = {{"x", {kTwo, x.data()}}};
    const std::vector<NamedResult> results = {{"y", {kTwo, y.data()}}};
    return executor.Start(inputs, results);
  }
  static absl::StatusOr<std::vector<float>> Run(Executor& executor) {
    std::vector<float> y(2);
    ASSIGN_OR_RETURN(const int64_t call, Start(executor, y));
    RETURN_IF_ERROR(executor.Wait(call));
    return y;
  }
};

INSTANTIATE_TEST_SUITE_P(Machines, SettingsTest,
                         testing::Values(Machine::kHost, Machine::kSimulated, Machine::kCuda, Machine::kLazyCuda),
                         [](const auto& info) { return Name(info.param); });

TEST_P(SettingsTest, HoldUntilTheyAreSet) {
  WithExecutor([](Executor& executor) -> absl::Status {
    EXPECT_THAT(*executor.ReadSetting("rate"), 2);
    EXPECT_THAT(*Run(executor), ElementsAre(102, 204));
    RETURN_IF_ERROR(executor.Set("rate", 3));
    EXPECT_THAT(*executor.ReadSetting("rate"), 3);
    for (int run = 0; run < 5; ++run) EXPECT_THAT(*Run(executor), ElementsAre(103, 206)) << run;
    RETURN_IF_ERROR(executor.Set("shift", -50));
    RETURN_IF_ERROR(executor.Set("rate", 0));
    EXPECT_THAT(*Run(executor), ElementsAre(50, 150));
    return absl::OkStatus();
  });
}

TEST_P(SettingsTest, RunsThatAreUnderWayKeepWhatTheyStartedWith) {
  WithExecutor([](Executor& executor) -> absl::Status {
    constexpr int kRuns = 6;
    std::vector<std::vector<float>> found(kRuns, std::vector<float>(2));
    for (int run = 0; run < kRuns; ++run) {
      RETURN_IF_ERROR(executor.Set("rate", run));
      RETURN_IF_ERROR(Start(executor, found[static_cast<size_t>(run)]).status());
      RETURN_IF_ERROR(executor.Set("rate", 7));
    }
    RETURN_IF_ERROR(executor.Wait(kRuns));
    for (int run = 0; run < kRuns; ++run) {
      const auto rate = static_cast<float>(run);
      EXPECT_THAT(found[static_cast<size_t>(run)], ElementsAre(100 + rate, 200 + 2 * rate)) << run;
    }
    EXPECT_EQ(*executor.ReadSetting("rate"), 7);
    return absl::OkStatus();
  });
}

TEST_P(SettingsTest, WrongValuesAreRefusedAndChangeNothing) {
  WithExecutor([](Executor& executor) -> absl::Status {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
    for (double wrong : {8.0, -0.5, kNan, kInf}) {
      EXPECT_THAT(MessageOf(executor.Set("rate", wrong)),
                  HasSubstr("expected a finite number of at least 0 and below 8"));
    }
    EXPECT_EQ(MessageOf(executor.Set("shift", kInf)), "setting shift is inf, expected a finite number");
    const std::string known = "there is no setting w; settings are rate, shift";
    EXPECT_EQ(MessageOf(executor.Set("w", 1)), known);
    EXPECT_EQ(MessageOf(executor.ReadSetting("w").status()), known);
    EXPECT_THAT(*Run(executor), ElementsAre(102, 204));
    return absl::OkStatus();
  });
}

// kStep for a mesh of ranks, with the learning rate as a setting.
std::string StepWithSetting(int ranks) {
  const std::string text = WithAll(StepFor(ranks), "(%x", "(setting %rate: f64[] in [0.0, inf) = 0.1, %x");
  return WithAll(text, "learning_rate=0.1", "learning_rate=%rate");
}

absl::StatusOr<std::vector<float>> Trained(const std::string& text, Communicator& world, Device& device, double rate) {
  ASSIGN_OR_RETURN(const auto executor, Load(text, world, device));
  const Tensor w = Values({DType::kF32, Shape({3, 5})}, 1);
  RETURN_IF_ERROR(executor->AssignState("w", {w.type(), w.bytes()}));
  const Batch batch(4);
  for (int run = 0; run < 3; ++run) {
    if (run == 1 && !executor->executable().settings.empty()) RETURN_IF_ERROR(executor->Set("rate", rate));
    RETURN_IF_ERROR(executor->Run(batch.inputs(), {}));
  }
  std::vector<float> trained(15);
  RETURN_IF_ERROR(executor->ReadState("w", {w.type(), trained.data()}));
  return trained;
}

TEST(SettingsOfRanks, ComputeWhatConstantsDo) {
  for (int ranks : {1, 2, 3}) {
    StatusOfEach(ranks, [&](Communicator& world, Device& device) -> absl::Status {
      ASSIGN_OR_RETURN(const auto constant, Trained(StepFor(ranks), world, device, 0.1));
      ASSIGN_OR_RETURN(const auto setting, Trained(StepWithSetting(ranks), world, device, 0.1));
      ASSIGN_OR_RETURN(const auto other, Trained(StepWithSetting(ranks), world, device, 0.3));
      EXPECT_EQ(setting, constant);
      EXPECT_NE(other, constant);
      return absl::OkStatus();
    });
  }
}

TEST(SettingsOfRanks, ThatDifferAreAnErrorThatShowsBoth) {
  const std::vector<absl::Status> statuses = StatusOfEach(2, [](Communicator& world, Device& device) {
    return Trained(StepWithSetting(2), world, device, world.rank() == 0 ? 0.1 : 0.25).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("settings have different values on them"), HasSubstr("none"), HasSubstr("rate=0.25")));
  }
}

// The numbers are equal, but their bits are not.
TEST(SettingsOfRanks, ThatAreZerosOfBothSignsAreOne) {
  const std::vector<absl::Status> statuses = StatusOfEach(2, [](Communicator& world, Device& device) {
    return Trained(StepWithSetting(2), world, device, world.rank() == 0 ? 0.0 : -0.0).status();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace lockstep
