// Tests the records of a rank, and reading them.

#include "runtime/record/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/record/clock.h"
#include "runtime/record/job_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class RecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/record-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(root_); }

  std::unique_ptr<Recorder> Make(int rank, bool keep_failed = false) const {
    return Recorder::Create({.rank = rank, .size = 2}, {.root = root_, .trace = "", .keep_failed = keep_failed});
  }
  std::string folder() const { return root_ + "/" + ThisJob(); }

  std::string root_;
};

RecordedProgram TwoSteps() {
  RecordedProgram program;
  program.name = "step";
  program.steps = {{RecordedStep::Kind::kKernel, "onednn.matmul", "onnx:/fc1/MatMul", "", 0},
                   {RecordedStep::Kind::kWait, "all_reduce.wait", "", "bucket 0 (%dw)", 1 << 20, true}};
  return program;
}

TEST_F(RecorderTest, ReadersFindWhatARankRecordsWhileItRecords) {
  const std::unique_ptr<Recorder> recorder = Make(1);
  const uint16_t first = recorder->AddProgram(TwoSteps()), second = recorder->AddProgram(TwoSteps());
  EXPECT_NE(first, second);
  recorder->Record(StepEvent{.time = 5, .step = 1, .call = 3, .program = second, .kind = StepEvent::Kind::kStep});
  recorder->Record(TransferEvent{.time = 6, .sequence = 9, .last = 1, .phase = TransferEvent::Phase::kMet});
  const std::vector<RankRecord> records = ReadRecords(folder());
  ASSERT_EQ(records.size(), 1u);
  const RankRecord& record = records[0];
  EXPECT_EQ(record.facts.rank, 1);
  EXPECT_EQ(record.facts.process, getpid());
  ASSERT_EQ(record.steps.size(), 1u);
  EXPECT_EQ(record.steps[0].step, 1);
  EXPECT_EQ(record.steps[0].call, 3u);
  ASSERT_NE(record.program(second), nullptr);
  EXPECT_EQ(record.program(second)->Describe(0), "step 0 onednn.matmul (onnx:/fc1/MatMul)");
  EXPECT_EQ(record.program(second)->Describe(1), "step 1 all_reduce.wait bucket 0 (%dw)");
  EXPECT_EQ(record.program(second)->Describe(7), "step 7");
  ASSERT_EQ(record.transfers.size(), 1u);
  EXPECT_EQ(record.transfers[0].sequence, 9u);
  EXPECT_EQ(record.transfers[0].last, 1);
}

TEST_F(RecorderTest, ADamagedRecordIsOfNoRank) {
  const std::unique_ptr<Recorder> recorder = Make(0);
  const std::string path = FilesIn(folder(), kRecordSuffix).at(0);
  for (const auto& [rank, size] : {std::pair(-1, 2), {2, 2}, {0, 0}, {0, 1 << 30}}) {
    RecordedRank facts = recorder->rank();
    facts.rank = rank;
    facts.size = size;
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(offsetof(RecordHeader, rank))
        .write(reinterpret_cast<const char*>(&facts), sizeof(facts));
    EXPECT_THAT(std::string(ReadRank(path).status().message()), testing::HasSubstr(path + " is damaged"));
    EXPECT_TRUE(ReadRecords(folder()).empty());
  }
}

TEST_F(RecorderTest, ARankThatEndsWellLeavesNothing) {
  Make(0).reset();
  EXPECT_TRUE(Jobs(root_).empty());
}

TEST_F(RecorderTest, OfRanksThatFailTheFilesOfProcessesStay) {
  for (const bool keep : {false, true}) {
    std::unique_ptr<Recorder> recorder = Make(0, keep);
    recorder->SetFailure(absl::UnavailableError("rank 1 died"));
    recorder->SetFailure(absl::UnavailableError("something else"));
    recorder.reset();
    const std::vector<RankRecord> records = ReadRecords(folder());
    ASSERT_EQ(records.size(), keep ? 1u : 0u);
    for (const RankRecord& record : records) EXPECT_EQ(record.failure, "rank 1 died");
  }
}

TEST_F(RecorderTest, WhereNoTraceCanBeThatIsSaid) {
  const std::string file = root_ + "/file";
  std::ofstream(file) << "not a folder";
  testing::internal::CaptureStderr();
  EXPECT_NE(Recorder::Create({.rank = 1, .size = 2}, {.root = root_, .trace = file, .keep_failed = false}), nullptr);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::StartsWith("lockstep: no trace of rank 1 in LOCKSTEP_TRACE=" + file + ": "));
}

TEST(RecorderOptionsTest, TheEnvironmentSaysHowLongAWaitMayBe) {
  const auto stall_of = [](const char* text) {
    setenv("LOCKSTEP_STALL", text, 1);
    const absl::Duration stall = RecorderOptions::FromEnvironment(true).stall;
    unsetenv("LOCKSTEP_STALL");
    return stall;
  };
  EXPECT_EQ(stall_of("0.5"), absl::Milliseconds(500));
  EXPECT_EQ(stall_of("0"), absl::InfiniteDuration());
  EXPECT_EQ(stall_of("inf"), absl::InfiniteDuration());
  const absl::Duration plain = RecorderOptions().stall;
  EXPECT_EQ(stall_of(""), plain);
  for (const char* wrong : {"soon", "-1", "nan", "1 s"}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(stall_of(wrong), plain) << wrong;
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr(std::string("is \"") + wrong + "\""));
  }
}

TEST_F(RecorderTest, WithoutAFolderItRecordsInMemory) {
  const std::unique_ptr<Recorder> recorder = Recorder::Create({}, {.root = "/proc/no-folder", .trace = ""});
  EXPECT_EQ(recorder->folder(), "");
  recorder->Record(StepEvent{.time = 5});
  EXPECT_EQ(recorder->Read().steps.size(), 1u);
  EXPECT_EQ(recorder->Read().lost, 0u);
}

TEST_F(RecorderTest, CountsTheEventsThatAreOverwritten) {
  const std::unique_ptr<Recorder> recorder = Make(0);
  for (uint64_t i = 0; i < RecordLayout::kSteps + 3; ++i) recorder->Record(StepEvent{});
  for (uint64_t i = 0; i < RecordLayout::kTransfers + 4; ++i) recorder->Record(TransferEvent{});
  EXPECT_EQ(recorder->Read().lost, 7u);
  EXPECT_EQ(ReadRecords(recorder->folder())[0].lost, 7u);
}

TEST_F(RecorderTest, AForkedProcessRecordsNothingAndRemovesNothing) {
  std::unique_ptr<Recorder> recorder = Make(0);
  const pid_t child = fork();
  if (child == 0) {
    const bool on = recorder->is_on();
    recorder.reset();
    _exit(on ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(recorder->is_on());
  EXPECT_EQ(ReadRecords(folder()).size(), 1u);
}

// Runs a job of one process that is killed.
void RunAndDie(const std::string& root, const std::string& job) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("PMIX_NAMESPACE", job.c_str(), 1);
    const std::unique_ptr<Recorder> recorder = Recorder::Create({}, {.root = root, .trace = ""});
    recorder->AddProgram(TwoSteps());
    recorder->Record(StepEvent{.time = RecordNow(), .step = 0, .call = 1, .kind = StepEvent::Kind::kStep});
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
}

TEST_F(RecorderTest, TheRecordOfADeadProcessStaysUntilOthersHaveDied) {
  RunAndDie(root_, "first");
  ASSERT_EQ(ReadRecords(root_ + "/first").size(), 1u);
  EXPECT_EQ(ReadRecords(root_ + "/first")[0].steps.size(), 1u);
  EXPECT_FALSE(IsAlive(root_ + "/first"));
  const std::unique_ptr<Recorder> alive = Make(0);
  EXPECT_TRUE(IsAlive(folder()));
  for (const char* job : {"second", "third", "fourth", "fifth"}) {
    usleep(20'000);  // the resolution of times in file systems
    RunAndDie(root_, job);
  }
  EXPECT_EQ(Jobs(root_), (std::vector<std::string>{"fifth", "fourth", "third", "second", ThisJob()}));
}

TEST(RecordTest, NamesSurviveTheirTextAndWhatIsCutOffIsNotTaken) {
  RecordedProgram program = TwoSteps();
  program.index = 7;
  program.steps[0].source = "a name\twith\nseparators";
  const std::string text = ToText(program);
  const std::vector<RecordedProgram> programs = ParsePrograms(text + text);
  ASSERT_EQ(programs.size(), 2u);
  EXPECT_EQ(programs[1].index, 7);
  EXPECT_EQ(programs[1].name, "step");
  ASSERT_EQ(programs[1].steps.size(), 2u);
  EXPECT_EQ(programs[1].steps[0].source, "a name with separators");
  EXPECT_EQ(programs[1].steps[1].label, "bucket 0 (%dw)");
  EXPECT_EQ(programs[1].steps[1].bytes, 1 << 20);
  EXPECT_TRUE(programs[1].steps[1].is_urgent);
  EXPECT_FALSE(programs[1].steps[0].is_urgent);
  for (size_t cut = 0; cut < text.size(); ++cut) EXPECT_EQ(ParsePrograms(text + text.substr(0, cut)).size(), 1u);
}

}  // namespace
}  // namespace lockstep
