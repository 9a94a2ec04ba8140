// A trace: all that the ranks of a job record while LOCKSTEP_TRACE is set, not only the last events. Each rank has a
// thread that takes new events out of its rings and writes them to a file of its own, in a folder of the job; the last
// rank that ends merges the files into one, trace.json, which Perfetto and chrome://tracing show. What a rank wrote
// before it died is there, and `lockstep report` merges then.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/record/record.h"

namespace lockstep {

class Recorder;

class TraceWriter {
 public:
  // Writes to a new file of the folder <folder>/<job>. The recorder is borrowed and must outlive this.
  static absl::StatusOr<std::unique_ptr<TraceWriter>> Create(const Recorder& recorder, const std::string& folder);
  // Writes what is left, and merges if all ranks have ended. What cannot be written is said on stderr.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

 private:
  TraceWriter(const Recorder& recorder, std::string folder, std::FILE* file);
  void Loop();
  void TakeNew();
  void WriteBlock(char kind, const void* data, size_t bytes);

  const Recorder& recorder_;
  const std::string folder_;
  std::FILE* const file_;
  RecordedRank said_;  // what follows is used by the thread, and by others when it has ended
  uint64_t next_step_ = 0, next_transfer_ = 0, lost_ = 0;
  size_t programs_said_ = 0;  // characters
  bool failed_ = false;
  std::mutex mutex_;  // guards stop_
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

// What the files of a job's folder hold, by rank. An error if there are none.
absl::StatusOr<std::vector<RankRecord>> ReadTrace(const std::string& folder);

// Writes trace.json of the files in a job's folder, and returns its path.
absl::StatusOr<std::string> MergeTrace(const std::string& folder);

// The folder of the newest job in a folder of traces; `folder` itself if it is that of a job.
absl::StatusOr<std::string> FindTrace(const std::string& folder);

}  // namespace lockstep
