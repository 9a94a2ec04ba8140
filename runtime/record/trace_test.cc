// Tests traces: the files contain all events of the ranks, for any length of the rings, and the merged file has them in
// order.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "runtime/record/clock.h"
#include "runtime/record/job_folder.h"
#include "runtime/record/recorder.h"
#include "runtime/record/trace_file.h"
#include "runtime/record/trace_json.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/trace-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<Recorder> Make(int rank) const {
    return Recorder::Create({.rank = rank, .size = 2}, {.root = "", .trace = folder_});
  }
  // Waits until the trace has so many steps of rank 0, but not for ever.
  void AwaitSteps(size_t count) const {
    for (int i = 0; i < 1000; ++i) {
      const absl::StatusOr<std::vector<RankRecord>> records = ReadTrace(folder_ + "/" + ThisJob());
      if (records.ok() && records->at(0).steps.size() >= count) return;
      usleep(10'000);
    }
  }
  std::string merged() const { return folder_ + "/" + ThisJob() + "/trace.json"; }

  std::string folder_;
};

RecordedProgram OneStep() {
  RecordedProgram program;
  program.name = "step";
  program.steps = {{RecordedStep::Kind::kKernel, "onednn.\"matmul\"", "onnx:/fc1/MatMul", "", 0}};
  return program;
}

void RunOnce(Recorder& recorder, uint32_t call, int64_t begin) {
  recorder.Record(StepEvent{.time = begin, .call = call, .kind = StepEvent::Kind::kCall});
  recorder.Record(StepEvent{.time = begin + 10, .call = call, .kind = StepEvent::Kind::kStep});
  recorder.Record(StepEvent{.time = begin + 1500, .call = call, .kind = StepEvent::Kind::kEnd});
}

TEST_F(TraceTest, HoldsMoreThanTheRings) {
  constexpr uint32_t kCalls = 3 * RecordLayout::kSteps;
  std::unique_ptr<Recorder> first = Make(0), second = Make(1);
  first->AddProgram(OneStep());
  for (uint32_t call = 1; call <= kCalls; ++call) {
    RunOnce(*first, call, call * 2000);
    if (call % 4000 == 0) AwaitSteps(3 * call);  // the ring has space for them
  }
  second.reset();
  EXPECT_FALSE(fs::exists(merged()));  // one rank has not ended
  first.reset();
  EXPECT_TRUE(fs::exists(merged()));
  const std::vector<RankRecord> records = ReadTrace(FindTrace(folder_).value()).value();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].facts.rank, 0);
  EXPECT_EQ(records[0].steps.size() + records[0].lost, size_t{3} * kCalls);
  EXPECT_EQ(records[0].lost, 0u);
  ASSERT_EQ(records[0].programs.size(), 1u);
  EXPECT_EQ(records[1].steps.size(), 0u);
}

TEST_F(TraceTest, OfADeadRankIsWhatItWroteBefore) {
  const std::string job = folder_ + "/job";
  fs::create_directories(job);
  {
    std::unique_ptr<Recorder> recorder = Make(0);
    recorder->AddProgram(OneStep());
    RunOnce(*recorder, 1, 1000);
    recorder->SetFailure(absl::UnavailableError("rank 1 died"));
  }
  const std::string whole = FilesIn(folder_ + "/" + ThisJob(), ".events").at(0);
  std::ifstream file(whole, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(ReadTrace(folder_ + "/" + ThisJob()).value().at(0).failure, "rank 1 died");
  int with_steps = 0;
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    std::ofstream(job + "/rank.events", std::ios::binary | std::ios::trunc) << bytes.substr(0, cut);
    const absl::StatusOr<std::vector<RankRecord>> records = ReadTrace(job);
    if (records.ok() && records->at(0).steps.size() == 3) ++with_steps;
  }
  EXPECT_GT(with_steps, 0);
}

// Everything before the damage is read, and no damage ends a process, because it may be a rank that merges the files of
// others.
TEST_F(TraceTest, AnyDamageIsReadOver) {
  {
    std::unique_ptr<Recorder> recorder = Make(0);
    recorder->AddProgram(OneStep());
    RunOnce(*recorder, 1, 1000);
    TransferEvent transfer{.time = 1200};
    for (const auto phase : {TransferEvent::Phase::kPosted, TransferEvent::Phase::kMet, TransferEvent::Phase::kMoved}) {
      transfer.phase = phase;
      recorder->Record(transfer);
    }
  }
  std::ifstream file(FilesIn(folder_ + "/" + ThisJob(), ".events").at(0), std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const std::string job = folder_ + "/job";
  fs::create_directories(job);
  size_t read = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const char mask : {'\x01', '\xff'}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      std::ofstream(job + "/rank.events", std::ios::binary | std::ios::trunc) << damaged;
      const absl::StatusOr<std::vector<RankRecord>> records = ReadTrace(job);
      if (!records.ok()) continue;
      ++read;
      for (const RankRecord& record : *records) {
        EXPECT_LT(strnlen(record.facts.host, sizeof(record.facts.host)), sizeof(record.facts.host));
        EXPECT_LT(strnlen(record.facts.transport, sizeof(record.facts.transport)), sizeof(record.facts.transport));
        EXPECT_LT(record.facts.rank, record.facts.size);
      }
      EXPECT_THAT(TraceJson(*records), HasSubstr("\"traceEvents\":["));
    }
  }
  EXPECT_GT(read, bytes.size());
  std::string endless = bytes;
  endless.replace(1, sizeof(uint64_t), sizeof(uint64_t),
                  '\x7f');  // in the first block: more bytes than there is memory
  std::ofstream(job + "/rank.events", std::ios::binary | std::ios::trunc) << endless;
  EXPECT_FALSE(ReadTrace(job).ok());
}

TEST_F(TraceTest, TextsWithoutAnEndAreEnded) {
  Make(0).reset();
  const std::string path = FilesIn(folder_ + "/" + ThisJob(), ".events").at(0);
  std::ifstream file(path, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  const size_t begin = 1 + sizeof(uint64_t) + offsetof(RecordedRank, host);
  constexpr size_t kBytes = sizeof(RecordedRank::host) + sizeof(RecordedRank::transport);
  bytes.replace(begin, kBytes, kBytes, 'x');
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  const RankRecord record = ReadTrace(folder_ + "/" + ThisJob()).value().at(0);
  EXPECT_EQ(std::string(record.facts.host), std::string(63, 'x'));
  EXPECT_EQ(std::string(record.facts.transport), std::string(31, 'x'));
}

TEST_F(TraceTest, SeveralMayMergeItAtOnce) {
  std::unique_ptr<Recorder> recorder = Make(0);
  recorder->AddProgram(OneStep());
  for (uint32_t call = 1; call <= 1000; ++call) RunOnce(*recorder, call, call * 2000);
  recorder.reset();
  const std::string job = FindTrace(folder_).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int merge = 0; merge < 5; ++merge) EXPECT_TRUE(MergeTrace(job).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(fs::exists(job + "/trace.json"));
  EXPECT_EQ(FilesIn(job, "").size(), 2u) << "the events, and the trace";
}

TEST(TraceJsonTest, IsInTheOrderOfTheClockOfRank0) {
  std::vector<RankRecord> records(2);
  for (int r = 0; r < 2; ++r) {
    records[r].facts.rank = r;
    records[r].facts.size = 2;
    records[r].facts.clock_ahead = r * 1'000'000'000;
    records[r].programs = {OneStep()};
    const int64_t begin = 5'000'000 + r * 1'000'000'000 + r * 100;
    records[r].steps = {{.time = begin, .call = 1, .kind = StepEvent::Kind::kCall},
                        {.time = begin + 1000, .call = 1, .kind = StepEvent::Kind::kStep},
                        {.time = begin + 3500, .call = 1, .kind = StepEvent::Kind::kEnd}};
    TransferEvent transfer{.time = begin + 1200, .sequence = 4};
    std::string("bucket 0").copy(transfer.label, 9);
    records[r].transfers.push_back(transfer);
    records[r].transfers.push_back(
        {.time = begin + 2000, .sequence = 4, .last = 1, .phase = TransferEvent::Phase::kMet});
    records[r].transfers.push_back({.time = begin + 3000, .sequence = 4, .phase = TransferEvent::Phase::kMoved});
  }
  const std::string json = TraceJson(records);
  // Rank 1's call begins 100 ns after rank 0's, although its clock is ahead by a second.
  const size_t of_0 = json.find(R"("ts":0.000,"dur":3.500,"pid":0,"tid":1,"name":"@step")");
  const size_t of_1 = json.find(R"("ts":0.100,"dur":3.500,"pid":1,"tid":1,"name":"@step")");
  const size_t kernel_of_0 = json.find(
      R"("ts":1.000,"dur":2.500,"pid":0,"tid":1,"name":"onednn.\"matmul\"","args":{"call":1,"step":0,"source":"onnx:/fc1/MatMul"})");
  const size_t moving =
      json.find(R"("ts":2.000,"dur":1.000,"pid":0,"tid":2,"name":"bucket 0","args":{"number":4,"last":1})");
  ASSERT_NE(of_0, std::string::npos) << json;
  ASSERT_NE(of_1, std::string::npos) << json;
  ASSERT_NE(kernel_of_0, std::string::npos) << json;
  ASSERT_NE(moving, std::string::npos) << json;
  EXPECT_LT(of_0, of_1);
  EXPECT_LT(of_1, kernel_of_0);
  EXPECT_LT(kernel_of_0, moving);
}

// The record of a rank of two, with one collective from `met` to `moved`, in nanoseconds.
RankRecord WithCollective(int rank, uint32_t communicator, int32_t last, int64_t met, int64_t moved) {
  RankRecord record;
  record.facts.rank = rank;
  record.facts.size = 2;
  using Phase = TransferEvent::Phase;
  for (const auto& [phase, time] : {std::pair(Phase::kPosted, int64_t{0}), {Phase::kMet, met}, {Phase::kMoved, moved}})
    record.transfers.push_back(
        {.time = time, .sequence = 4, .communicator = communicator, .last = last, .phase = phase});
  return record;
}

TEST(TraceJsonTest, AFlowLeadsFromTheRankThatCameLast) {
  const std::string json = TraceJson({WithCollective(0, 3, 1, 2000, 5000), WithCollective(1, 3, 1, 2500, 4000)});
  const std::string flow = R"("cat":"collective","name":"waited for","id":1,)";
  EXPECT_THAT(json, HasSubstr(R"({"ph":"s",)" + flow + R"("ts":2.500,"pid":1,"tid":5})"));
  // A flow must not end before it begins.
  EXPECT_THAT(json, HasSubstr(R"({"ph":"f","bp":"e",)" + flow + R"("ts":2.500,"pid":0,"tid":5})"));
  EXPECT_THAT(json,
              HasSubstr(R"("name":"thread_name","pid":1,"tid":5,"args":{"name":"collectives of communicator 3"})"));
  EXPECT_EQ(json.find("\"id\":2"), std::string::npos);
}

TEST(TraceJsonTest, WithoutAFlow) {
  const RankRecord other = WithCollective(1, 0, 1, 2000, 4000);
  RankRecord of_another_world = other;
  of_another_world.facts.world = 7;
  for (const std::vector<RankRecord>& records : {
           std::vector{WithCollective(0, 0, -1, 2000, 4000), other},  // the last rank is unknown
           std::vector{WithCollective(0, 0, 0, 2000, 4000), other},   // it is the rank itself
           std::vector{WithCollective(0, 0, 1, 1000, 1500), other},   // the clocks disagree
           std::vector{WithCollective(0, 1, 1, 2000, 4000), other},   // it is not recorded there
           std::vector{WithCollective(0, 0, 1, 2000, 4000), of_another_world},
       })
    EXPECT_EQ(TraceJson(records).find("\"ph\":\"s\""), std::string::npos);
}

TEST(TraceJsonTest, ASliceComesBeforeThoseInIt) {
  RankRecord record;
  record.programs = {OneStep()};
  record.steps = {{.time = 0, .call = 1, .kind = StepEvent::Kind::kCall},
                  {.time = 0, .call = 1, .kind = StepEvent::Kind::kStep},
                  {.time = 1500, .call = 1, .kind = StepEvent::Kind::kCompare},
                  {.time = 2000, .call = 1, .kind = StepEvent::Kind::kEnd}};
  const std::string json = TraceJson({record});
  const size_t name = json.find("process_name"), call = json.find("@step"), product = json.find("matmul");
  EXPECT_LT(name, call);
  EXPECT_LT(call, json.find("inputs and results"));
  EXPECT_LT(call, product);
}

TEST(TraceJsonTest, WithoutEventsItIsStillATrace) { EXPECT_THAT(TraceJson({}), HasSubstr("\"traceEvents\":[\n]")); }

}  // namespace
}  // namespace lockstep
