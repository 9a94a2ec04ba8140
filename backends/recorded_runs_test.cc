// The record of a rank after runs of compiled programs: each step of each call, each collective, and failures; and the
// messages of waiting ranks if one of them does not come.

#include <algorithm>
#include <cstdlib>

#include "absl/time/clock.h"
#include "backends/executor_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/execution/executor.h"
#include "runtime/record/job_status.h"
#include "runtime/record/recorder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// A step that is slow on one rank.
class Slow : public Step {
 public:
  Slow(std::unique_ptr<Step> step, absl::Duration pause) : Step(step->info()), step_(std::move(step)), pause_(pause) {}
  absl::Status Run(StepContext& context) override {
    absl::SleepFor(pause_);
    return step_->Run(context);
  }

 private:
  const std::unique_ptr<Step> step_;
  const absl::Duration pause_;
};

constexpr char kSlowLayer[] = "onnx:/fc/MatMul";

absl::StatusOr<Executable> WithSlowLayer(Executable executable, absl::Duration pause) {
  const auto slow = std::find_if(executable.steps.begin(), executable.steps.end(),
                                 [](const auto& step) { return step->info().source == kSlowLayer; });
  if (slow == executable.steps.end()) return NotFound() << "no step of " << kSlowLayer;
  *slow = std::make_unique<Slow>(std::move(*slow), pause);
  return executable;
}

TEST(RecordedRuns, HaveEachStepOfEachCallInOrder) {
  const auto all = StatusOfEach(2, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(StepFor(2), communicator, device));
    for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    const RankRecord record = communicator.recorder()->Read();
    EXPECT_EQ(record.facts.rank, communicator.rank());
    const RecordedProgram* const program = record.program(executor->recorded_as());
    if (program == nullptr) return Internal() << "the program has no names";
    EXPECT_EQ(program->name, "step");
    const size_t steps = executor->executable().steps.size();
    EXPECT_EQ(program->steps.size(), steps);
    EXPECT_TRUE(std::any_of(program->steps.begin(), program->steps.end(), [](const RecordedStep& step) {
      return step.source == kSlowLayer && step.kind == RecordedStep::Kind::kKernel;
    }));
    EXPECT_EQ(record.steps.size(), 3 * (steps + 2));
    int64_t time = 0;
    for (size_t i = 0; i < record.steps.size(); ++i) {
      const StepEvent& event = record.steps[i];
      const size_t place = i % (steps + 2);
      EXPECT_EQ(event.call, 1 + i / (steps + 2));
      EXPECT_EQ(event.program, executor->recorded_as());
      EXPECT_EQ(event.kind, place == 0           ? StepEvent::Kind::kCall
                            : place == steps + 1 ? StepEvent::Kind::kEnd
                                                 : StepEvent::Kind::kStep);
      EXPECT_TRUE(event.kind != StepEvent::Kind::kStep || event.step == static_cast<int>(place) - 1) << event.step;
      EXPECT_GE(event.time, time);
      time = event.time;
    }
    // Each collective of each call has passed through all phases.
    size_t moved = 0;
    for (const TransferEvent& event : record.transfers) moved += event.phase == TransferEvent::Phase::kMoved;
    EXPECT_GE(moved, static_cast<size_t>(3 * executor->executable().num_collectives));
    EXPECT_EQ(ActivityOf(record).where, "after call 3 of @step");
    return absl::OkStatus();
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

TEST(RecordedRuns, SayWhenACallFailed) {
  const auto all = StatusOfEach(1, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(kStep, communicator, device));
    Batch batch(4);
    batch.y.mutable_data<int64_t>()[1] = 5;
    EXPECT_FALSE(executor->Run(batch.inputs(), {}).ok());
    const RankRecord record = communicator.recorder()->Read();
    EXPECT_EQ(record.steps.back().kind, StepEvent::Kind::kFailed);
    EXPECT_EQ(ActivityOf(record).where, "failed in call 1 of @step");
    communicator.recorder()->set_on(false);
    EXPECT_TRUE(executor->Run(Batch(4).inputs(), {}).ok());
    EXPECT_EQ(communicator.recorder()->Read().steps.size(), record.steps.size());
    return absl::OkStatus();
  });
  EXPECT_TRUE(all[0].ok()) << all[0];
}

// There are three ranks, and the last one takes longer than the limit in its first call.
TEST(RecordedRuns, WaitingRanksSayOnceWhoIsLateAndInWhichLayer) {
  setenv("LOCKSTEP_STALL", "0.3", 1);
  testing::internal::CaptureStderr();
  const auto all = StatusOfEach(3, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(Executable executable, CompileFor(StepFor(3), communicator));
    const absl::Duration pause = communicator.rank() == 2 ? absl::Seconds(1) : absl::ZeroDuration();
    ASSIGN_OR_RETURN(executable, WithSlowLayer(std::move(executable), pause));
    ASSIGN_OR_RETURN(const auto executor, Executor::Load(std::move(executable), &communicator, &device));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    const RankRecord record = communicator.recorder()->Read();
    // The others recorded which rank was the last to reach the first collective after it.
    const bool waited_for_2 = std::any_of(record.transfers.begin(), record.transfers.end(), [](const auto& event) {
      return event.phase == TransferEvent::Phase::kMet && event.last == 2;
    });
    EXPECT_TRUE(waited_for_2);
    return absl::OkStatus();
  });
  const std::string said = testing::internal::GetCapturedStderr();
  unsetenv("LOCKSTEP_STALL");
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, HasSubstr("has waited 300ms in all_reduce"));
  EXPECT_EQ(said.find("has waited"), said.rfind("has waited")) << said;
  EXPECT_THAT(said, HasSubstr("late: rank 2\n"));
  const size_t line = said.find("  rank 2  ");
  ASSERT_NE(line, std::string::npos) << said;
  EXPECT_THAT(said.substr(line, said.find('\n', line) - line), HasSubstr(kSlowLayer));
}

}  // namespace
}  // namespace lockstep
