// Records the progress of one rank. It is always on, and costs tens of nanoseconds per event. A Recorder belongs to the
// communicators of one rank of a world, which find it with Communicator::recorder(). The rank's own thread and the
// threads that progress its collectives write. Others may read the file at the same time (record_file.h), also after
// the rank died. When a rank ends without failure, its file is removed.

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
  std::string root;                          // folder of the jobs' records; empty: only memory of this process
  std::string trace;                         // folder of traces; empty: no trace
  absl::Duration stall = absl::Seconds(10);  // the duration after which a wait is a stall; infinite: never
  bool keep_failed = false;                  // keeps the file of a rank that failed

  // Returns the options in the environment: LOCKSTEP_RECORD, LOCKSTEP_TRACE, LOCKSTEP_STALL (seconds; 0: never).
  // `job_of_processes` means that ranks are processes, of which the user sees only the output.
  static RecorderOptions FromEnvironment(bool job_of_processes);
};

class Recorder {
 public:
  // Sets the process and time fields of `rank`. If there can be no file, it records in memory of this process, which
  // other processes do not see.
  static std::unique_ptr<Recorder> Create(RecordedRank rank, const RecorderOptions& options);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Returns true if events should be recorded. Writers check it before each run or collective. Always false in a
  // process that was forked from the rank's.
  bool is_on() const;
  void set_on(bool on) { on_.store(on, std::memory_order_relaxed); }

  // Stores the names of a program's steps. Returns the program's number for events. `program.index` is ignored.
  uint16_t AddProgram(RecordedProgram program);
  // Returns a number for one more communicator of this rank's world: 0, 1, …
  uint32_t AddCommunicator() { return communicators_.fetch_add(1, std::memory_order_relaxed); }
  void Record(const StepEvent& event) { steps_.Write(event); }
  void Record(const TransferEvent& event) { transfers_.Write(event); }
  // Records that this rank's world has failed. The first failure counts.
  void SetFailure(const absl::Status& failure);
  // Sets the roles of the ranks of the world, by rank, in the program that this one runs now, such as "stage 1".
  // Messages of this rank add the role to the name of each rank. Empty: all ranks have the same role. Does nothing if
  // `program` is that of the last call.
  void SetRoles(uint16_t program, const std::vector<std::string>& roles);
  std::string RoleOf(int rank) const;  // empty: none
  // Sets the nanoseconds by which this rank's clock is ahead of rank 0's. Call it before anything else is recorded.
  void SetClockAhead(int64_t nanoseconds);

  const RecordedRank& rank() const { return header().rank; }
  // The folder of the job's records; empty if this record is only in memory.
  const std::string& folder() const { return folder_; }
  absl::Duration stall() const { return options_.stall; }

  // Returns the events recorded so far.
  RankRecord Read() const;

 private:
  friend class TraceWriter;
  Recorder(const RecordedRank& rank, const RecorderOptions& options);
  std::byte* MapFile();
  RecordHeader& header() const { return *reinterpret_cast<RecordHeader*>(memory_); }

  const uint32_t generation_;  // ForkGeneration() of the recording process
  const RecorderOptions options_;
  std::string folder_, file_;  // without a suffix; empty: there is no file
  std::byte* memory_ = nullptr;
  Ring<StepEvent> steps_;
  Ring<TransferEvent> transfers_;
  std::atomic<bool> on_{true};
  std::atomic<uint32_t> communicators_{0};
  mutable std::mutex naming_;  // guards the following members, and the clock's offset
  uint16_t programs_ = 0;
  std::string programs_text_;
  int roles_of_ = -1;  // the program of roles_; -1: none yet
  std::vector<std::string> roles_;
  std::unique_ptr<TraceWriter> trace_;  // null: no trace is written
};

}  // namespace lockstep
