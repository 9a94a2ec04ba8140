// The state of an executor after a failed call: unchanged, or spoiled until its states are assigned again.

#include <barrier>

#include "backends/executor_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/execution/executor.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// One state is updated before the loss reads the labels, as a running mean would be; the weight is updated afterwards.
// The labels are floats, so that FirstRefusals (planning/refusals.h) does not find the loss.
constexpr char kEarlyUpdate[] = R"(
graph @step(%x: f32[4,3] split(0), %y: f32[4] split(0), state %mean: f32[3,3], state %w: f32[3,5], state %unused: f32[2]) -> (loss: f32[], %mean: f32[3,3], %w: f32[3,5]) {
  %mean1 = neg %mean : f32[3,3] @"onnx:/bn"
  %x1 = matmul %x, %mean1 : f32[4,3] @"onnx:/bn"
  %z = matmul %x1, %w : f32[4,5] @"onnx:/fc/MatMul"
  %label = convert %y {dtype=i64} : i64[4]
  %loss, %dz = softmax_cross_entropy %z, %label {scale=0.25} : f32[], f32[4,5] @"onnx:/loss"
  %dw = matmul %x, %dz {transpose_a=true} : f32[3,5]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[3,5]
  return %loss, %mean1, %w1
}
)";

absl::StatusOr<Tensor> StateOf(Executor& executor, std::string_view name, TensorType type) {
  Tensor value(type);
  RETURN_IF_ERROR(executor.ReadState(name, {type, value.mutable_bytes()}));
  return value;
}

absl::Status Assign(Executor& executor, std::string_view name, const Tensor& value) {
  return executor.AssignState(name, {value.type(), value.bytes()});
}

Batch BadBatch() {
  Batch batch(4);
  batch.y.mutable_data<int64_t>()[1] = 5;
  return batch;
}

// The batch with float labels, for kEarlyUpdate.
Batch WithFloats(Batch batch) {
  batch.y = batch.y.Converted(DType::kF32);
  return batch;
}

const TensorType kMean{DType::kF32, {3, 3}}, kWeight{DType::kF32, {3, 5}};

TEST(OneRankThatFails, AFailureBeforeTheFirstUpdateChangesNothing) {
  const auto all = StatusOfEach(1, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(kStep, communicator, device));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    ASSIGN_OR_RETURN(const Tensor before, StateOf(*executor, "w", kWeight));
    EXPECT_THAT(MessageOf(executor->Run(BadBatch().inputs(), {})), HasSubstr("label 5"));
    EXPECT_EQ(executor->ResultOfLastRun("loss").status().code(), absl::StatusCode::kFailedPrecondition);
    RETURN_IF_ERROR(executor->CheckUsable());
    ASSIGN_OR_RETURN(const Tensor after, StateOf(*executor, "w", kWeight));
    EXPECT_EQ(before, after);
    return executor->Run(Batch(4).inputs(), {});
  });
  EXPECT_TRUE(all[0].ok()) << all[0];
}

TEST(OneRankThatFails, IntegersThatAreRefusedAreFoundBeforeAnyUpdate) {
  std::string text = kEarlyUpdate;
  text.replace(text.find("%y: f32"), 7, "%y: i64");
  const auto all = StatusOfEach(1, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(text, communicator, device));
    RETURN_IF_ERROR(Assign(*executor, "mean", Tensor::Full(kMean, 1.0)));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    EXPECT_THAT(MessageOf(executor->Run(BadBatch().inputs(), {})), HasSubstr("label 5"));
    RETURN_IF_ERROR(executor->CheckUsable());
    ASSIGN_OR_RETURN(const Tensor once, StateOf(*executor, "mean", kMean));
    EXPECT_EQ(once, Tensor::Full(kMean, -1.0));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    ASSIGN_OR_RETURN(const Tensor twice, StateOf(*executor, "mean", kMean));
    EXPECT_EQ(twice, Tensor::Full(kMean, 1.0));
    return absl::OkStatus();
  });
  EXPECT_TRUE(all[0].ok()) << all[0];
}

// The preparation gets the communicator.
TEST(Preparation, RunsOnceOnEveryRankWhenTheProgramIsLoaded) {
  const auto all = StatusOfEach(3, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(Executable executable, CompileFor(StepFor(3), communicator));
    int calls = 0;
    executable.prepare = [&](Device& given, Communicator& ranks) -> absl::Status {
      ++calls;
      EXPECT_EQ(&given, &device);
      ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                       ranks.AllGatherBytes(std::to_string(ranks.rank()), "preparing"));
      EXPECT_THAT(texts, testing::ElementsAre("0", "1", "2"));
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), &communicator, &device));
    EXPECT_EQ(calls, 1);
    for (int i = 0; i < 2; ++i) RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    EXPECT_EQ(calls, 1);
    return absl::OkStatus();
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

TEST(Preparation, AnErrorIsLoadsOnAllRanks) {
  const auto all = StatusOfEach(3, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(Executable executable, CompileFor(StepFor(3), communicator));
    executable.prepare = [](Device&, Communicator& ranks) -> absl::Status {
      if (ranks.rank() == 1) return Unimplemented() << "matmul %z (at onnx:/fc/MatMul): no kernel for it";
      return ranks.AllGatherBytes("", "preparing").status();
    };
    return Executor::Load(std::move(executable), &communicator, &device).status();
  });
  for (size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_THAT(MessageOf(all[rank]), HasSubstr("matmul %z (at onnx:/fc/MatMul): no kernel for it"));
    if (rank != 1) {
      EXPECT_THAT(MessageOf(all[rank]), HasSubstr("rank 1"));
    }
  }
}

TEST(OneRankThatFails, AFailureAfterAnUpdateSpoilsUntilAllUpdatedStatesAreAssigned) {
  const auto all = StatusOfEach(1, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(kEarlyUpdate, communicator, device));
    RETURN_IF_ERROR(Assign(*executor, "mean", Tensor::Full(kMean, 1.0)));
    RETURN_IF_ERROR(executor->Run(WithFloats(Batch(4)).inputs(), {}));
    EXPECT_THAT(MessageOf(executor->Run(WithFloats(BadBatch()).inputs(), {})), HasSubstr("label 5"));
    ASSIGN_OR_RETURN(const Tensor mean, StateOf(*executor, "mean", kMean));
    EXPECT_EQ(mean, Tensor::Full(kMean, 1.0));  // negated twice; a correct program would do so once

    const absl::Status spoilt = executor->Run(WithFloats(Batch(4)).inputs(), {});
    EXPECT_EQ(spoilt.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(spoilt, executor->CheckUsable());
    EXPECT_THAT(MessageOf(spoilt), HasSubstr("@step: call 2 failed when it was updating the states"));
    EXPECT_THAT(MessageOf(spoilt), HasSubstr("label 5 at position [1]"));
    EXPECT_THAT(MessageOf(spoilt), HasSubstr("assign the states mean, w"));

    RETURN_IF_ERROR(Assign(*executor, "mean", Tensor::Full(kMean, 3.0)));
    EXPECT_THAT(MessageOf(executor->Run(WithFloats(Batch(4)).inputs(), {})), HasSubstr("assign the states w"));
    EXPECT_FALSE(Assign(*executor, "w", Tensor(kMean)).ok());  // another shape
    EXPECT_THAT(MessageOf(executor->CheckUsable()), HasSubstr("assign the states w"));
    RETURN_IF_ERROR(Assign(*executor, "w", Tensor(kWeight)));
    RETURN_IF_ERROR(executor->Run(WithFloats(Batch(4)).inputs(), {}));
    ASSIGN_OR_RETURN(const Tensor again, StateOf(*executor, "mean", kMean));
    EXPECT_EQ(again, Tensor::Full(kMean, -3.0));
    return absl::OkStatus();
  });
  EXPECT_TRUE(all[0].ok()) << all[0];
}

TEST(OneRankThatFails, ARunThatFailsCountsForNothing) {
  const auto all = StatusOfEach(1, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(kStep, communicator, device));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    const ExecutorCounters before = executor->counters();
    const std::vector<StepProfile> steps = executor->profile();
    EXPECT_EQ(before.runs, 1);
    EXPECT_GT(before.kernels, 0);
    EXPECT_GE(before.outside_kernels(), 0);
    EXPECT_FALSE(executor->Run(BadBatch().inputs(), {}).ok());
    EXPECT_EQ(executor->counters().runs, 1);
    EXPECT_EQ(executor->counters().total, before.total);
    EXPECT_EQ(executor->counters().kernels, before.kernels);
    EXPECT_EQ(executor->counters().communication, before.communication);
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(executor->profile()[i].seconds, steps[i].seconds);
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    EXPECT_EQ(executor->counters().runs, 2);
    EXPECT_GT(executor->counters().kernels, before.kernels);
    EXPECT_GE(executor->counters().outside_kernels(), 0);
    return absl::OkStatus();
  });
  EXPECT_TRUE(all[0].ok()) << all[0];
}

// The step that fails may have written part of a state.
TEST(OneRankThatFails, AFailureOfTheFirstUpdateSpoils) {
  constexpr char kDivide[] = R"(
graph @divide(state %d: i32[4], state %w: i32[4]) -> (%w: i32[4]) {
  %w1 = div %w, %d : i32[4] @"onnx:/Div"
  return %w1
}
)";
  const auto all = StatusOfEach(1, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(kDivide, communicator, device));
    EXPECT_THAT(MessageOf(executor->Run({}, {})), HasSubstr("onnx:/Div"));  // all states are zero at first
    EXPECT_THAT(MessageOf(executor->CheckUsable()), HasSubstr("assign the states w"));
    return absl::OkStatus();
  });
  EXPECT_TRUE(all[0].ok()) << all[0];
}

// The peer fails in the collective that the first rank never starts, and has also made the early update.
TEST(TwoRanks, BothAreSpoilt) {
  const std::string text = WithAll(kEarlyUpdate, "[4", "[8");
  std::barrier through(2);
  const auto all = StatusOfEach(2, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(text, communicator, device));
    RETURN_IF_ERROR(Assign(*executor, "mean", Tensor::Full(kMean, 1.0)));
    RETURN_IF_ERROR(executor->Run(WithFloats(Batch(4)).inputs(), {}));
    through.arrive_and_wait();  // otherwise the failure may reach the peer in its first call
    const Batch batch = WithFloats(communicator.rank() == 0 ? BadBatch() : Batch(4));
    EXPECT_THAT(MessageOf(executor->Run(batch.inputs(), {})), HasSubstr("label 5"));
    ASSIGN_OR_RETURN(const Tensor mean, StateOf(*executor, "mean", kMean));
    EXPECT_EQ(mean, Tensor::Full(kMean, 1.0));
    const absl::Status spoilt = executor->Run(WithFloats(Batch(4)).inputs(), {});
    EXPECT_EQ(spoilt.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(spoilt), HasSubstr("call 2 failed when it was updating the states"));
    EXPECT_THAT(MessageOf(spoilt), HasSubstr("label 5"));
    EXPECT_THAT(MessageOf(spoilt), HasSubstr("its communicator has ended, too: restart the job"));
    return absl::OkStatus();
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

// A collective whose result is a state's next value writes to registered memory while the step fails, not to the state.
TEST(TwoRanks, AStateWhoseNextValueIsInFlightStaysAsItWas) {
  constexpr char kScatter[] = R"(
graph @scatter(%x: f32[8,3] split(0), %y: i64[8] split(0), state %s: f32[4] split(0), state %v: f32[3,4], state %w: f32[3,5]) -> (loss: f32[], %s: f32[4] split(0)) {
  %u = matmul %x, %v : f32[8,4]
  %s1 = reduce_sum %u {dims=[0]} : f32[4]
  %z = matmul %x, %w : f32[8,5]
  %loss, %dz = softmax_cross_entropy %z, %y {scale=0.125} : f32[], f32[8,5]
  return %loss, %s1
}
)";
  std::barrier through(2);
  const auto all = StatusOfEach(2, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(kScatter, communicator, device));
    const TensorType slice{DType::kF32, {2}};
    RETURN_IF_ERROR(Assign(*executor, "s", Tensor::Full(slice, 1.0)));
    const std::string steps = executor->executable().ToString();
    const size_t start = steps.find("reduce_scatter.start"), wait = steps.find("reduce_scatter.wait");
    EXPECT_LT(start, steps.find("softmax_cross_entropy")) << steps;
    EXPECT_GT(wait, steps.find("softmax_cross_entropy")) << steps;
    through.arrive_and_wait();  // otherwise the failure may reach the peer while it loads
    const Batch batch = communicator.rank() == 0 ? BadBatch() : Batch(4);
    EXPECT_THAT(MessageOf(executor->Run(batch.inputs(), {})), HasSubstr("label 5"));
    ASSIGN_OR_RETURN(const Tensor s, StateOf(*executor, "s", slice));
    EXPECT_EQ(s, Tensor::Full(slice, 1.0));
    return executor->CheckUsable();
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace lockstep
