// Records what one rank does: it is always on, and costs tens of nanoseconds an event. A Recorder belongs to the
// communicators of one rank of a world, which find it with Communicator::recorder(). The rank's own thread and those
// that make its collectives progress write; others look at the file meanwhile (record_file.h), also when the rank is
// dead. A file of a rank that ended well is removed.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/record/record.h"
#include "runtime/record/record_file.h"
#include "runtime/record/ring.h"

namespace lockstep {

class TraceWriter;

struct RecorderOptions {
  std::string root;                          // folder of the jobs' records; empty: memory of this process alone
  std::string trace;                         // folder of traces; empty: none is written
  absl::Duration stall = absl::Seconds(10);  // after which a wait for peers is one; infinite: never
  bool keep_failed = false;                  // the file of a rank that failed stays

  // As the environment says: LOCKSTEP_RECORD, LOCKSTEP_TRACE, LOCKSTEP_STALL (seconds; 0: never). `job_of_processes`:
  // its ranks are processes, of which the user sees nothing but their output.
  static RecorderOptions FromEnvironment(bool job_of_processes);
};

class Recorder {
 public:
  // Fills in what `rank` has to say of process and time. Where there can be no file it records in memory of this
  // process, which other processes do not see.
  static std::unique_ptr<Recorder> Create(RecordedRank rank, const RecorderOptions& options);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Whether events are wanted: asked by writers before each run or collective. Never in a process that was forked from
  // the rank's.
  bool is_on() const;
  void set_on(bool on) { on_.store(on, std::memory_order_relaxed); }

  // Keeps the names of a program's steps, and returns the number that its events name. `program.index` is ignored.
  uint16_t AddProgram(RecordedProgram program);
  // A number for one more communicator of this rank's world: 0, 1, …
  uint32_t AddCommunicator() { return communicators_.fetch_add(1, std::memory_order_relaxed); }
  void Record(const StepEvent& event) { steps_.Write(event); }
  void Record(const TransferEvent& event) { transfers_.Write(event); }
  // That this rank's world has failed. The first failure counts.
  void SetFailure(const absl::Status& failure);
  // What the ranks of the world are, by rank, in the program that this one runs now, such as "stage 1": messages of
  // this rank say it of each rank that they name. None: they are alike. Does nothing if it is the program of the last
  // call.
  void SetRoles(uint16_t program, const std::vector<std::string>& roles);
  std::string RoleOf(int rank) const;  // empty: none
  // By how much this rank's clock is ahead of rank 0's. Before anything else is recorded.
  void SetClockAhead(int64_t nanoseconds);

  const RecordedRank& rank() const { return header().rank; }
  // Of the job's records; empty if this one is in memory alone.
  const std::string& folder() const { return folder_; }
  absl::Duration stall() const { return options_.stall; }

  // What is recorded by now.
  RankRecord Read() const;

 private:
  friend class TraceWriter;
  Recorder(const RecordedRank& rank, const RecorderOptions& options);
  std::byte* MapFile();
  RecordHeader& header() const { return *reinterpret_cast<RecordHeader*>(memory_); }

  const uint32_t generation_;  // ForkGeneration() of the process that records
  const RecorderOptions options_;
  std::string folder_, file_;  // without a suffix; empty: there is none
  std::byte* memory_ = nullptr;
  Ring<StepEvent> steps_;
  Ring<TransferEvent> transfers_;
  std::atomic<bool> on_{true};
  std::atomic<uint32_t> communicators_{0};
  mutable std::mutex naming_;  // guards what follows, and the clock's offset
  uint16_t programs_ = 0;
  std::string programs_text_;
  int roles_of_ = -1;  // the program of roles_; -1: none yet
  std::vector<std::string> roles_;
  std::unique_ptr<TraceWriter> trace_;  // null: no trace is written
};

}  // namespace lockstep
