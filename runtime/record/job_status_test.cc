// Tests the texts about ranks that compute, wait, are outside of calls, stopped or dead.

#include "runtime/record/job_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "runtime/process/process.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

RankRecord Rank(int rank, int size = 2) {
  RankRecord record;
  record.facts = {.rank = rank, .size = size, .process = getpid()};
  record.facts.process_start = FactsOfProcess(getpid())->start;
  std::string("host").copy(record.facts.host, 5);
  RecordedProgram program;
  program.name = "step";
  program.steps = {{RecordedStep::Kind::kKernel, "onednn.matmul", "onnx:/fc1/MatMul", "", 0},
                   {RecordedStep::Kind::kStart, "all_reduce.start", "", "bucket 0", 512},
                   {RecordedStep::Kind::kKernel, "llvm.loop", "onnx:/relu", "", 0},
                   {RecordedStep::Kind::kWait, "all_reduce.wait", "", "bucket 0", 512}};
  record.programs = {program};
  return record;
}

void Begin(RankRecord* record, int64_t time, int32_t step) {
  record->steps.push_back({.time = time, .step = step, .call = 57, .kind = StepEvent::Kind::kStep});
}

void Phase(RankRecord* record, int64_t time, TransferEvent::Phase phase, const char* label = "") {
  TransferEvent event{.time = time, .sequence = 5, .phase = phase};
  std::string(label).copy(event.label, TransferEvent::kLabelBytes - 1);
  record->transfers.push_back(event);
}

// A push waits for the update of the previous one, a pull for its own update. The start of a pull does not wait. A
// collective in progress at the same time does not matter.
TEST(ActivityTest, OfARankAtParameterServers) {
  RankRecord record = Rank(0);
  record.programs[0].steps = {{RecordedStep::Kind::kPush, "push", "", "w", 512},
                              {RecordedStep::Kind::kStartPull, "pull.start", "", "w", 512},
                              {RecordedStep::Kind::kWaitPull, "pull.wait", "", "w", 512}};
  using Kind = Activity::Kind;
  int32_t step = 0;
  for (const Kind kind : {Kind::kWaits, Kind::kComputes, Kind::kWaits}) {
    Begin(&record, 10 + step, step);
    EXPECT_EQ(ActivityOf(record).kind, kind) << step;
    EXPECT_EQ(ActivityOf(record).since, 10 + step);
    ++step;
  }
  EXPECT_EQ(ActivityOf(record).where, "call 57 of @step, step 2 pull.wait w");
  Phase(&record, 20, TransferEvent::Phase::kPosted, "loss");
  Phase(&record, 21, TransferEvent::Phase::kMet);
  EXPECT_EQ(ActivityOf(record).kind, Kind::kWaits);
  EXPECT_EQ(ActivityOf(record).since, 12);
}

TEST(ActivityTest, OfARankInEachPartOfACall) {
  RankRecord record = Rank(0);
  EXPECT_EQ(ActivityOf(record).kind, Activity::Kind::kNothing);
  record.steps.push_back({.time = 1, .call = 57, .kind = StepEvent::Kind::kCall});
  EXPECT_EQ(ActivityOf(record).kind, Activity::Kind::kComputes);
  EXPECT_EQ(ActivityOf(record).where, "call 57 of @step");
  Begin(&record, 2, 0);
  EXPECT_EQ(ActivityOf(record).where, "call 57 of @step, step 0 onednn.matmul (onnx:/fc1/MatMul)");
  Begin(&record, 3, 1);
  Phase(&record, 4, TransferEvent::Phase::kPosted, "bucket 0");
  Begin(&record, 5, 2);  // it computes, although a collective is in progress
  EXPECT_EQ(ActivityOf(record).kind, Activity::Kind::kComputes);
  EXPECT_EQ(ActivityOf(record).since, 5);
  Begin(&record, 6, 3);
  EXPECT_EQ(ActivityOf(record).kind, Activity::Kind::kWaits);
  EXPECT_EQ(ActivityOf(record).since, 6);
  EXPECT_EQ(ActivityOf(record).where, "call 57 of @step, step 3 all_reduce.wait bucket 0");
  Phase(&record, 7, TransferEvent::Phase::kMet);
  EXPECT_EQ(ActivityOf(record).kind, Activity::Kind::kMoves);
  Phase(&record, 8, TransferEvent::Phase::kMoved);
  EXPECT_EQ(ActivityOf(record).kind, Activity::Kind::kComputes);
  record.steps.push_back({.time = 9, .call = 57, .kind = StepEvent::Kind::kEnd});
  EXPECT_EQ(ActivityOf(record).kind, Activity::Kind::kOutside);
  EXPECT_EQ(ActivityOf(record).where, "after call 57 of @step");
  Phase(&record, 10, TransferEvent::Phase::kPosted, "barrier");
  EXPECT_EQ(ActivityOf(record).kind, Activity::Kind::kWaits);
  EXPECT_EQ(ActivityOf(record).where, "barrier");
}

TEST(DescribeTest, NamesTheRankThatIsLateAndItsLayer) {
  RankRecord waits = Rank(0), computes = Rank(1);
  Phase(&waits, 3 * kSecond, TransferEvent::Phase::kPosted, "bucket 0");
  Begin(&waits, 3 * kSecond, 3);
  Begin(&computes, kSecond, 0);
  const std::string text = Describe({waits, computes}, 13 * kSecond);
  EXPECT_THAT(text, HasSubstr("on host  waits        10.0 s  call 57 of @step, step 3 all_reduce.wait bucket 0\n"));
  EXPECT_THAT(text, HasSubstr("on host  computes     12.0 s  call 57 of @step, step 0 onednn.matmul "
                              "(onnx:/fc1/MatMul)\n"));
  EXPECT_THAT(text, HasSubstr("late: rank 1\n"));
}

TEST(DescribeTest, NobodyIsLateWhereNobodyWaits) {
  RankRecord first = Rank(0), second = Rank(1);
  Begin(&first, 1, 0);
  Begin(&second, 1, 0);
  EXPECT_THAT(Describe({first, second}, 2), Not(HasSubstr("late")));
}

TEST(DescribeTest, NobodyIsLateByWhatRanksWaitInEveryStep) {
  RankRecord waits = Rank(0), computes = Rank(1);
  Phase(&waits, kSecond, TransferEvent::Phase::kPosted, "bucket 0");
  Begin(&waits, kSecond, 3);
  Begin(&computes, kSecond, 0);
  EXPECT_THAT(Describe({waits, computes}, 2 * kSecond - 1), Not(HasSubstr("late")));
  EXPECT_THAT(Describe({waits, computes}, 2 * kSecond), HasSubstr("late: rank 1\n"));
}

TEST(StatusOfTest, HasTheStateOfEachRank) {
  RankRecord begins = Rank(0, 3), waits = Rank(1, 3), computes = Rank(2, 3);
  Phase(&waits, kSecond, TransferEvent::Phase::kPosted, "bucket 0");
  Begin(&waits, kSecond, 3);
  Begin(&computes, kSecond, 0);
  const std::vector<RankRecord> records = {begins, waits, computes};
  const std::vector<RankStatus> statuses = StatusOf(records, 2 * kSecond);
  ASSERT_EQ(statuses.size(), 3u);
  const char* const states[] = {"begins", "waits", "computes"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(statuses[i].record, &records[i]);
    EXPECT_STREQ(statuses[i].state(), states[i]);
    EXPECT_EQ(statuses[i].is_late, i != 1);
  }
}

TEST(DescribeTest, SaysWhichRanksHaveNoRecord) {
  RankRecord only = Rank(1, 3);
  Begin(&only, 1, 0);
  const std::string text = Describe({only}, 2);
  EXPECT_THAT(text, HasSubstr("rank 0  has no record here"));
  EXPECT_THAT(text, HasSubstr("rank 2  has no record here"));
}

TEST(DescribeTest, ADeadAndAStoppedProcessAreNamed) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  RankRecord waits = Rank(0), other = Rank(1);
  Phase(&waits, 1, TransferEvent::Phase::kPosted, "bucket 0");
  Begin(&waits, 1, 3);
  Begin(&other, 1, 0);
  other.facts.process = child;
  other.facts.process_start = FactsOfProcess(child)->start;
  int status = 0;
  kill(child, SIGSTOP);
  waitpid(child, &status, WUNTRACED);
  EXPECT_THAT(Describe({waits, other}, 2), HasSubstr("on host  stopped "));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  const std::string text = Describe({waits, other}, 2);
  EXPECT_THAT(text, HasSubstr("on host  died "));
  EXPECT_THAT(text, HasSubstr("step 0 onednn.matmul (onnx:/fc1/MatMul)"));
  EXPECT_THAT(text, HasSubstr("late: rank 1\n"));
}

TEST(DescribeTest, WorldsInWhichNothingRunsAreLeftOut) {
  RankRecord trains = Rank(0, 1), idle = Rank(0, 1);
  std::string("mpi").copy(trains.facts.transport, 4);
  std::string("single").copy(idle.facts.transport, 7);
  EXPECT_THAT(Describe({trains, idle}, 2), HasSubstr("single, 1 rank\n"));
  Begin(&trains, 1, 0);
  EXPECT_THAT(Describe({trains, idle}, 2), HasSubstr("mpi, 1 rank\n"));
  EXPECT_THAT(Describe({trains, idle}, 2), Not(HasSubstr("single")));
}

TEST(StatusTextTest, AnErrorSaysWhereItLooked) {
  EXPECT_THAT(std::string(StatusText("/no/such/folder", "").status().message()), HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace lockstep
