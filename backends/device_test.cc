// Programs on a device whose memory is not the host's: they compute the same as the host, a failed call leaves nothing
// in the queue, and memory that is not the device's is refused.

#include "runtime/device.h"

#include <cstring>

#include "backends/device_test_support.h"
#include "backends/executor_test_support.h"
#include "backends/simulated_backend.h"
#include "core/local_part.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"
#include "runtime/comm/staged.h"
#include "runtime/execution/agreement.h"
#include "runtime/simulated_device.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kMlp[] = R"(
graph @mlp(%x: f32[8,6] split(0), state %w: f32[6,10] split(1, model), state %b: f32[10] split(0, model), state %u: f32[10,5] split(0, model)) -> (logits: f32[8,5]) {
  %z = matmul %x, %w : f32[8,10]
  %bb = broadcast %b {dims=[1], shape=[8,10]} : f32[8,10]
  %zb = add %z, %bb : f32[8,10]
  %h = tanh %zb : f32[8,10]
  %logits = matmul %h, %u : f32[8,5]
  return %logits
}
)";
const Mesh kGrid({{"data", 2}, {"model", 2}});

Graph MlpStep() {
  absl::StatusOr<Graph> graph = ParseGraph(kMlp);
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  passes::TrainStepSpec spec;
  spec.optimizer = {"SGD", {{"learning_rate", 0.3}, {"momentum", 0.9}}};
  const absl::Status status = passes::MakeTrainStep(*graph, spec);
  LOCKSTEP_CHECK(status.ok()) << status;
  return *std::move(graph);
}

// Assigns the states and runs three times. Returns for each run the results, the first in the caller's memory, and the
// states after it.
absl::StatusOr<std::vector<Tensor>> TrainOnMachine(Rank& rank, int number, const Mesh& mesh) {
  Executor& executor = *rank.executor;
  const Executable& executable = executor.executable();
  for (const ValueInfo& state : executable.states) {
    Tensor value = Values(state.global_type, 1);
    RETURN_IF_ERROR(executor.AssignState(state.name, {value.type(), value.bytes()}));
    std::memset(value.mutable_bytes(), 0xff, value.num_bytes());  // no longer needed
  }
  std::vector<Tensor> found;
  for (int run = 0; run < 3; ++run) {
    std::vector<Tensor> parts;
    std::vector<NamedInput> inputs;
    parts.reserve(executable.inputs.size());
    for (const ValueInfo& input : executable.inputs) {
      const Tensor& part =
          parts.emplace_back(LocalPart(Values(input.global_type, run), input.placements, mesh, number));
      inputs.push_back({input.name, {part.type(), part.bytes()}});
    }
    Tensor given(executable.results[0].local_type);
    const std::vector<NamedResult> results = {{executable.results[0].name, {given.type(), given.mutable_bytes()}}};
    RETURN_IF_ERROR(executor.Run(inputs, results));
    EXPECT_EQ(rank.queued(), 0u);
    found.push_back(given);
    for (size_t i = 1; i < executable.results.size(); ++i) {
      ASSIGN_OR_RETURN(const ConstTensorRef own, executor.ResultOfLastRun(executable.results[i].name));
      Tensor& copy = found.emplace_back(own.type);
      std::memcpy(copy.mutable_bytes(), own.data, copy.num_bytes());
    }
    for (const ValueInfo& state : executable.states) {
      Tensor& value = found.emplace_back(state.local_type);
      RETURN_IF_ERROR(executor.ReadState(state.name, {value.type(), value.mutable_bytes()}));
    }
  }
  return found;
}

// Returns the results of each rank. Expects that its communicator was split `expected_splits` times.
std::vector<std::vector<Tensor>> TrainOnRanks(const Graph& graph, const Mesh& mesh, Machine machine,
                                              int expected_splits = 0) {
  const Machines machines(machine, static_cast<int>(mesh.num_ranks()));
  std::vector<std::vector<Tensor>> of_ranks(static_cast<size_t>(mesh.num_ranks()));
  const absl::Status status = ForEachRank(static_cast<int>(of_ranks.size()), [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const auto rank, Rank::Load(graph, mesh, machines, world));
    EXPECT_EQ(rank->opened.device_communicator != nullptr, !machines.is_host() && world.size() > 1);
    if (rank->opened.device_communicator != nullptr) {
      EXPECT_EQ(static_cast<StagedCommunicator&>(*rank->opened.device_communicator).splits(), expected_splits);
    }
    ASSIGN_OR_RETURN(of_ranks[static_cast<size_t>(world.rank())], TrainOnMachine(*rank, world.rank(), mesh));
    return CheckReplicas(*rank->executor, *rank->opened.communicator);
  });
  EXPECT_TRUE(status.ok()) << status;
  return of_ranks;
}

class OnDevice : public testing::TestWithParam<Machine> {};

INSTANTIATE_TEST_SUITE_P(Machines, OnDevice, testing::Values(Machine::kSimulated, Machine::kCuda, Machine::kLazyCuda),
                         [](const auto& info) { return Name(info.param); });

TEST_P(OnDevice, ComputesWhatTheHostDoes) {
  for (int ranks : {1, 2, 3}) {
    const Mesh mesh({{"data", ranks}});
    const auto expected = TrainOnRanks(SmallStep(ranks), mesh, Machine::kHost);
    // A mesh of one axis uses the world itself, without splitting it.
    const auto found = TrainOnRanks(SmallStep(ranks), mesh, GetParam(), /*expected_splits=*/0);
    EXPECT_EQ(found, expected) << ranks << " ranks";
    ASSERT_EQ(found[0].size(), 3u * 4);  // the loss, the old state, two states
    EXPECT_NE(found[0][2], found[0][6]) << "nothing was learnt";
  }
}

TEST_P(OnDevice, ComputesOnAGridWhatTheHostDoes) {
  const auto expected = TrainOnRanks(MlpStep(), kGrid, Machine::kHost);
  const auto found = TrainOnRanks(MlpStep(), kGrid, GetParam(), /*expected_splits=*/2);
  EXPECT_EQ(found, expected);
  EXPECT_NE(found[0], found[1]) << "of weights that are split";
}

TEST_P(OnDevice, ReplicasThatPartAreNamed) {
  const Machines machines(GetParam(), 2);
  std::vector<absl::Status> all;
  (void)ForEachRank(
      2,
      [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(const auto rank, Rank::Load(SmallStep(2), Mesh({{"data", 2}}), machines, world));
        const Tensor w = Tensor::Full({DType::kF32, {3, 5}}, 1 + world.rank());
        RETURN_IF_ERROR(rank->executor->AssignState("w", {w.type(), w.bytes()}));
        const absl::Status status = rank->executor->Run(Batch(4).inputs(), {});
        EXPECT_EQ(rank->queued(), 0u);
        return status;
      },
      &all);
  for (const absl::Status& status : all) {
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("replicas of the states differ"), HasSubstr("rank 1")));
  }
}

TEST_P(OnDevice, StatesStayOnIt) {
  const Machines machines(GetParam(), 1);
  (void)ForEachRank(1, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const auto rank, Rank::Load(SmallStep(1), Mesh({{"data", 1}}), machines, world));
    Tensor w = Tensor::Full({DType::kF32, {3, 5}}, 1);
    EXPECT_THAT(MessageOf(rank->executor->BindState("w", {w.type(), w.mutable_bytes()}, true)),
                AllOf(HasSubstr("state w lies on "), HasSubstr("only states in the host's memory can be bound")));
    return rank->executor->Run(Batch(4).inputs(), {});
  });
}

// --- Calls that fail ----------------------------------------------------------------------------------------------

// The caller may free its memory, which queued copies would read.
TEST_P(OnDevice, ACallThatFailsLeavesNothingInTheQueue) {
  const Machines machines(GetParam(), 1);
  const absl::Status status = ForEachRank(1, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const auto rank, Rank::Load(SmallStep(1), Mesh({{"data", 1}}), machines, world));
    Executor& executor = *rank->executor;
    std::vector<NamedInput> inputs;
    {
      const Batch batch(4);
      inputs = batch.inputs();
      inputs.pop_back();  // y, when the copy of x has been queued
      EXPECT_THAT(MessageOf(executor.Run(inputs, {})), HasSubstr("input y is missing"));
      EXPECT_EQ(rank->queued(), 0u);
    }
    Batch bad(4);
    bad.y.mutable_data<int64_t>()[1] = 5;
    EXPECT_THAT(MessageOf(executor.Run(bad.inputs(), {})), HasSubstr("label 5 at position [1]"));
    EXPECT_EQ(rank->queued(), 0u);
    // All steps had begun when the device reported the error: it is unknown what they updated.
    EXPECT_THAT(MessageOf(executor.CheckUsable()), HasSubstr("assign the states w"));
    const Tensor w = Tensor::Full({DType::kF32, {3, 5}}, 1);
    RETURN_IF_ERROR(executor.AssignState("w", {w.type(), w.bytes()}));
    return executor.Run(Batch(4).inputs(), {});
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(OnDevice, AFailureReachesThePeers) {
  const Machines machines(GetParam(), 3);
  std::vector<absl::Status> all;
  (void)ForEachRank(
      3,
      [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(const auto rank, Rank::Load(SmallStep(3), Mesh({{"data", 3}}), machines, world));
        Batch batch(4);
        if (world.rank() == 1) batch.y.mutable_data<int64_t>()[0] = -1;
        const absl::Status status = rank->executor->Run(batch.inputs(), {});
        EXPECT_EQ(rank->queued(), 0u);
        return status;
      },
      &all);
  for (const absl::Status& status : all) EXPECT_THAT(MessageOf(status), HasSubstr("label -1"));
}

TEST(Device, ACommunicatorOfTheHostIsRefused) {
  std::vector<absl::Status> all;
  (void)ForEachRank(
      2,
      [](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(Graph graph, ParseGraph(StepFor(2)));
        const auto backend = CreateSimulatedBackend();
        ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(world));
        CompileOptions options;
        options.mesh = Mesh({{"data", 2}});
        ASSIGN_OR_RETURN(Executable executable, Compile(std::move(graph), *backend, options));
        return Executor::Load(std::move(executable), &world, opened.device.get()).status();
      },
      &all);
  for (const absl::Status& status : all) {
    EXPECT_THAT(MessageOf(status), HasSubstr("@step runs in the memory of simulated, and the communicator (in_process) "
                                             "gives out memory of the host"));
  }
}

// --- Basis of the tests above ----------------------------------------------------------------------------------------

TEST(SimulatedDevice, RefusesWhatIsNotItsMemory) {
  SimulatedDevice device, other;
  auto memory = *device.Allocate(64, "memory");
  const auto of_other = *other.Allocate(64, "memory");
  std::byte host[64] = {};
  EXPECT_TRUE(device.CopyToDevice(memory->data(), host, 64).ok());
  for (std::byte* wrong : {host, of_other->data(), memory->data() + 1}) {
    EXPECT_THAT(MessageOf(device.CopyToDevice(wrong, host, 64)), HasSubstr("not memory of the device simulated"));
    EXPECT_THAT(MessageOf(device.CopyToHost(host, wrong, 64)), HasSubstr("not memory of the device simulated"));
    EXPECT_FALSE(device.CopyWithin(wrong, memory->data(), 64).ok());
    EXPECT_FALSE(device.CopyWithin(memory->data(), wrong, 64).ok());
  }
  std::byte* freed = memory->data();
  memory.reset();
  EXPECT_FALSE(device.CopyToHost(host, freed, 64).ok());
}

TEST(SimulatedDevice, DoesNothingBeforeItIsSynchronized) {
  SimulatedDevice device;
  const auto memory = *device.Allocate(4, "memory");
  int value = 1, found = 7;
  ASSERT_TRUE(device.CopyToDevice(memory->data(), reinterpret_cast<std::byte*>(&value), 4).ok());
  ASSERT_TRUE(device.CopyToHost(reinterpret_cast<std::byte*>(&found), memory->data(), 4).ok());
  value = 2;  // the copy uses the earlier value
  EXPECT_EQ(found, 7);
  ASSERT_TRUE(device.Synchronize().ok());
  EXPECT_EQ(found, 1);
  EXPECT_DEATH((void)*reinterpret_cast<volatile int*>(memory->data()), "");  // the host accesses it
}

TEST(SimulatedDevice, KernelsRefuseHostPointers) {
  const auto backend = CreateSimulatedBackend();
  absl::StatusOr<Graph> graph =
      ParseGraph("graph @neg(%x: f32[2]) -> (y: f32[2]) {\n  %y = neg %x : f32[2]\n  return %y\n}\n");
  ASSERT_TRUE(graph.ok()) << graph.status();
  absl::StatusOr<Executable> executable = Compile(*std::move(graph), *backend, {});
  ASSERT_TRUE(executable.ok()) << executable.status();
  SimulatedDevice device;
  float x[2] = {1, 2}, y[2] = {};
  std::vector<std::byte*> addresses(executable->buffers.size(), reinterpret_cast<std::byte*>(x));
  addresses[static_cast<size_t>(executable->results[0].buffer)] = reinterpret_cast<std::byte*>(y);
  StepContext context(addresses, device, {}, {});
  ASSERT_EQ(executable->steps.size(), 1u);
  EXPECT_THAT(MessageOf(executable->steps[0]->Run(context)), HasSubstr("not memory of the device simulated"));
  EXPECT_EQ(device.stream()->size(), 0u);
}

}  // namespace
}  // namespace lockstep
