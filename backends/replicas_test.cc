// Replicas that diverge: each possible cause ends in an error on all ranks, which names two ranks and the cause.

#include <barrier>

#include "backends/executor_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/replica_evidence.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A step with an input that must be the same on all ranks.
constexpr char kWithDecay[] = R"(
graph @step(%x: f32[4,3] split(0), %y: i64[4] split(0), %decay: f32[3,5], state %w: f32[3,5]) -> (loss: f32[], %w: f32[3,5]) {
  %z = matmul %x, %w : f32[4,5]
  %loss, %dz = softmax_cross_entropy %z, %y {scale=0.25} : f32[], f32[4,5]
  %dw = matmul %x, %dz {transpose_a=true} : f32[3,5]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[3,5]
  %w2 = mul %w1, %decay : f32[3,5]
  return %loss, %w2
}
)";

using Body = std::function<absl::Status(Communicator& communicator, Device& device, bool is_last)>;

// The parameter is the number of ranks.
class Replicas : public testing::TestWithParam<int> {
 protected:
  // Expects that all ranks end with an error that names the last rank and contains `cause`.
  void ExpectDisagreement(const std::string& cause, const Body& body) {
    const int last = GetParam() - 1;
    const auto all = StatusOfEach(GetParam(), [&](Communicator& communicator, Device& device) {
      return body(communicator, device, communicator.rank() == last);
    });
    for (const absl::Status& status : all) {
      EXPECT_FALSE(status.ok());  // with any code: a late rank may get the failure of a peer
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("rank " + std::to_string(last)), HasSubstr(cause)));
    }
  }

  void ExpectOk(const Body& body) {
    const auto all = StatusOfEach(GetParam(), [&](Communicator& communicator, Device& device) {
      return body(communicator, device, communicator.rank() == GetParam() - 1);
    });
    for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
  }

  std::string Last() const { return "rank " + std::to_string(GetParam() - 1); }
  std::string Step() const { return StepFor(GetParam()); }
  std::string StepWithDecay() const { return WithAll(kWithDecay, "[4", "[" + std::to_string(4 * GetParam())); }
};

absl::Status AssignWeight(Executor& executor, double value) {
  const Tensor w = Tensor::Full({DType::kF32, {3, 5}}, value);
  return executor.AssignState("w", {w.type(), w.bytes()});
}

absl::Status AssignUnused(Executor& executor) {
  const Tensor unused(TensorType{DType::kF32, {2}});
  return executor.AssignState("unused", {unused.type(), unused.bytes()});
}

absl::Status RunWithDecay(Executor& executor, double decay) {
  const Batch batch(4);
  const Tensor tensor = Tensor::Full({DType::kF32, {3, 5}}, decay);
  auto inputs = batch.inputs();
  inputs.push_back({"decay", {tensor.type(), tensor.bytes()}});
  return executor.Run(inputs, {});
}

absl::StatusOr<std::unique_ptr<Executor>> LoadChecked(const std::string& text, Communicator& communicator,
                                                      Device& device, int64_t check_every) {
  ExecutorOptions options;
  options.check_every = check_every;
  return Load(text, communicator, device, {}, options);
}

// All ranks have two executables with the same collectives, but call them in different order.
TEST_P(Replicas, AnotherProgram) {
  ExpectDisagreement("they run different programs", [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto slow, Load(Step(), communicator, device));
    ASSIGN_OR_RETURN(const auto fast, Load(WithAll(Step(), "rate=0.1", "rate=0.5"), communicator, device));
    RETURN_IF_ERROR(slow->Run(Batch(4).inputs(), {}));
    RETURN_IF_ERROR(fast->Run(Batch(4).inputs(), {}));
    return (is_last ? fast : slow)->Run(Batch(4).inputs(), {});
  });
}

TEST_P(Replicas, AStateAssignedOnOneRankAlone) {
  const std::string cause = "different states were assigned on them (rank 0: none; " + Last() + ": w)";
  ExpectDisagreement(cause, [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, LoadChecked(Step(), communicator, device, 0));  // needs no hash
    RETURN_IF_ERROR(AssignWeight(*executor, 1));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    if (is_last) RETURN_IF_ERROR(AssignWeight(*executor, 1));
    return executor->Run(Batch(4).inputs(), {});
  });
}

// Each rank assigns one state, but not the same.
TEST_P(Replicas, AnotherStateAssigned) {
  const std::string cause = "different states were assigned on them (rank 0: w; " + Last() + ": unused)";
  ExpectDisagreement(cause, [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, LoadChecked(Step(), communicator, device, 0));
    RETURN_IF_ERROR(is_last ? AssignUnused(*executor) : AssignWeight(*executor, 0));  // unchanged
    return executor->Run(Batch(4).inputs(), {});
  });
}

TEST_P(Replicas, AStateAssignedMoreOftenOnOneRank) {
  const std::string cause = "different states were assigned on them (rank 0: all; " + Last() + ": w (2 times), unused)";
  ExpectDisagreement(cause, [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, LoadChecked(Step(), communicator, device, 0));
    for (int i = 0; i < (is_last ? 2 : 1); ++i) RETURN_IF_ERROR(AssignWeight(*executor, 1));
    RETURN_IF_ERROR(AssignUnused(*executor));
    return executor->Run(Batch(4).inputs(), {});
  });
}

// Ranks may iterate over their states in any order.
TEST_P(Replicas, TheOrderOfAssignmentsDoesNotMatter) {
  ExpectOk([&](Communicator& communicator, Device& device, bool is_last) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, LoadChecked(Step(), communicator, device, 0));
    if (is_last) RETURN_IF_ERROR(AssignUnused(*executor));
    RETURN_IF_ERROR(AssignWeight(*executor, 1));
    if (!is_last) RETURN_IF_ERROR(AssignUnused(*executor));
    return executor->Run(Batch(4).inputs(), {});
  });
}

TEST_P(Replicas, AStateAssignedWithAnotherValue) {
  ExpectDisagreement("replicas of the states differ", [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, Load(Step(), communicator, device));
    RETURN_IF_ERROR(AssignWeight(*executor, 1));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    RETURN_IF_ERROR(AssignWeight(*executor, is_last ? 0.5 : 1));  // long before the next check
    return executor->Run(Batch(4).inputs(), {});
  });
}

TEST_P(Replicas, AnInputThatShouldBeEqual) {
  ExpectDisagreement("inputs that are replicated", [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, Load(StepWithDecay(), communicator, device));
    return RunWithDecay(*executor, is_last ? 0.5 : 1);
  });
}

// Runs between two checks are not compared; a difference is found by the next check, here in the states.
TEST_P(Replicas, ContentsAreComparedEverySoManyRuns) {
  std::barrier through(GetParam());
  ExpectDisagreement("replicas of the states differ", [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, LoadChecked(StepWithDecay(), communicator, device, 3));
    RETURN_IF_ERROR(AssignWeight(*executor, 1));
    for (int run = 0; run < 3; ++run) {
      const absl::Status status = RunWithDecay(*executor, is_last && run > 0 ? 0.5 : 1);
      EXPECT_TRUE(status.ok()) << status;
    }
    through.arrive_and_wait();  // otherwise the error may reach a peer in the previous run
    return RunWithDecay(*executor, 1);
  });
}

TEST_P(Replicas, ContentsAreNeverComparedIfNobodyWantsIt) {
  ExpectOk([&](Communicator& communicator, Device& device, bool is_last) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, LoadChecked(StepWithDecay(), communicator, device, 0));
    RETURN_IF_ERROR(AssignWeight(*executor, is_last ? 0.5 : 1));
    for (int run = 0; run < 3; ++run) RETURN_IF_ERROR(RunWithDecay(*executor, is_last ? 0.5 : 1));
    return absl::OkStatus();
  });
}

TEST_P(Replicas, TheIntervalIsAgreedAtLoad) {
  ExpectDisagreement("check_every=3 profile=False", [&](Communicator& communicator, Device& device, bool is_last) {
    return LoadChecked(Step(), communicator, device, is_last ? 3 : 4).status();
  });
}

TEST(Assigned, IsDescribedShortly) {
  std::vector<ValueInfo> states(5);
  for (size_t i = 0; i < states.size(); ++i) states[i].name = std::string(1, static_cast<char>('a' + i));
  EXPECT_EQ(DescribeAssigned(states, {0, 0, 0, 0, 0}, 40), "none");
  EXPECT_EQ(DescribeAssigned(states, {0, 1, 0, 1, 0}, 40), "b, d");
  EXPECT_EQ(DescribeAssigned(states, {1, 1, 0, 1, 1}, 40), "all but c");
  EXPECT_EQ(DescribeAssigned(states, {1, 1, 1, 1, 1}, 40), "all");
  EXPECT_EQ(DescribeAssigned(states, {1, 1, 3, 1, 1}, 40), "a, b, c (3 times), d, e");
  EXPECT_EQ(DescribeAssigned(states, {1, 1, 3, 1, 1}, 22), "a, b and 3 more");
  states[0].name = "a.long.name.of.a.state";
  EXPECT_EQ(DescribeAssigned(states, {1, 1, 0, 0, 0}, 22), "a.long.n... and 1 more");
  EXPECT_EQ(DescribeAssigned({states[0]}, {1}, 22), "a.long.name.of.a.state");
  EXPECT_EQ(DescribeAssigned({states[0]}, {1}, 12), "a.long.na...");
}

// --- Programs without collectives ---------------------------------------------------------------------------------

constexpr char kCount[] = R"(
graph @count(%x: f32[], state %n: f32[]) -> (%n: f32[]) {
  %n1 = add %n, %x : f32[]
  return %n1
}
)";
constexpr char kLook[] = R"(
graph @look(%x: f32[], state %n: f32[]) -> (y: f32[]) {
  %y = add %n, %x : f32[]
  return %y
}
)";

absl::StatusOr<std::unique_ptr<Executor>> LoadReplicated(const std::string& text, Communicator& communicator,
                                                         Device& device) {
  CompileOptions options;
  options.replicated = true;
  return Load(text, communicator, device, options);
}

absl::Status RunOn(Executor& executor, double value) {
  const Tensor x = Tensor::Scalar(DType::kF32, value);
  return executor.Run(std::vector<NamedInput>{{"x", {x.type(), x.bytes()}}}, {});
}

absl::Status AssignN(Executor& executor, double value) {
  const Tensor n = Tensor::Scalar(DType::kF32, value);
  return executor.AssignState("n", {n.type(), n.bytes()});
}

// The ranks hold replicas of a state, which would diverge.
TEST_P(Replicas, WithoutCollectivesInputsOfAnUpdateAreCompared) {
  ExpectDisagreement("inputs that are replicated", [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, LoadReplicated(kCount, communicator, device));
    return RunOn(*executor, is_last ? 1 : 2);
  });
}

TEST_P(Replicas, WithoutCollectivesAssignmentsBeforeAnUpdateAreCompared) {
  const std::string cause = "different states were assigned on them (rank 0: none; " + Last() + ": n)";
  ExpectDisagreement(cause, [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, LoadReplicated(kCount, communicator, device));
    RETURN_IF_ERROR(RunOn(*executor, 1));
    if (is_last) RETURN_IF_ERROR(AssignN(*executor, 1));
    return RunOn(*executor, 1);
  });
  ExpectDisagreement("replicas of the states differ", [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, LoadReplicated(kCount, communicator, device));
    RETURN_IF_ERROR(RunOn(*executor, 1));
    RETURN_IF_ERROR(AssignN(*executor, is_last ? 1 : 2));
    return RunOn(*executor, 1);
  });
}

TEST_P(Replicas, WithoutCollectivesADisagreementLeavesTheStates) {
  ExpectDisagreement("inputs that are replicated", [&](Communicator& communicator, Device& device, bool is_last) {
    ASSIGN_OR_RETURN(const auto executor, LoadReplicated(kCount, communicator, device));
    const absl::Status status = RunOn(*executor, is_last ? 1 : 2);
    Tensor n = Tensor::Scalar(DType::kF32, 7);
    EXPECT_TRUE(executor->ReadState("n", {n.type(), n.mutable_bytes()}).ok());
    EXPECT_EQ(n.At(0), 0);
    EXPECT_TRUE(executor->CheckUsable().ok());
    return status;
  });
}

TEST_P(Replicas, WithoutCollectivesAnUpdateTooManyIsNoticed) {
  const int last = GetParam() - 1;
  std::barrier through(GetParam());
  const auto all = StatusOfEach(GetParam(), [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, LoadReplicated(kCount, communicator, device));
    EXPECT_TRUE(RunOn(*executor, 1).ok());
    through.arrive_and_wait();  // otherwise the error may reach a peer in the previous run
    return communicator.rank() == last ? RunOn(*executor, 1) : absl::OkStatus();
  });
  for (int rank = 0; rank < last; ++rank) EXPECT_TRUE(all[static_cast<size_t>(rank)].ok()) << all[0];
  EXPECT_THAT(MessageOf(all.back()), AllOf(HasSubstr("rank "), HasSubstr("has left")));
}

// This is, for example, an evaluation: each rank may run it any number of times.
TEST_P(Replicas, WithoutCollectivesAndUpdatesEachRankIsOnItsOwn) {
  ExpectOk([&](Communicator& communicator, Device& device, bool is_last) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, LoadReplicated(kLook, communicator, device));
    if (is_last) RETURN_IF_ERROR(AssignN(*executor, 1));
    for (int run = 0; run < (is_last ? 5 : communicator.rank()); ++run) RETURN_IF_ERROR(RunOn(*executor, run));
    return absl::OkStatus();
  });
}

// --- At load ------------------------------------------------------------------------------------------------------

// The number of threads determines how sums are cut.
TEST_P(Replicas, AnotherNumberOfThreads) {
  ExpectDisagreement("threads=", [&](Communicator& communicator, Device& device, bool is_last) {
    CompileOptions options;
    options.threads = is_last ? 2 : 1;
    const absl::Status status = Load(Step(), communicator, device, options).status();
    EXPECT_THAT(MessageOf(status), HasSubstr("on rank 0: 1\n  on " + Last() + ": 2"));
    return status;
  });
}

TEST_P(Replicas, AnotherProcessor) {
  ExpectDisagreement("isa=\"avx2\"", [&](Communicator& communicator, Device& device, bool is_last) -> absl::Status {
    ASSIGN_OR_RETURN(Executable executable, CompileFor(Step(), communicator));
    EXPECT_THAT(executable.fingerprint, AllOf(HasSubstr("build "), HasSubstr("oneDNN 3."), HasSubstr("LLVM 19")));
    EXPECT_THAT(executable.fingerprint, testing::Not(HasSubstr("unknown")));
    if (is_last) executable.fingerprint += "\n+another-feature";
    const absl::Status status = Executor::Load(std::move(executable), &communicator, &device).status();
    EXPECT_THAT(MessageOf(status), HasSubstr(": +another-feature"));
    return status;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Replicas, testing::Values(2, 3));

}  // namespace
}  // namespace lockstep
