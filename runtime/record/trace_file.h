// A trace: all events that the ranks of a job record while LOCKSTEP_TRACE is set, not only the last ones. Each rank has
// a thread that takes new events from its rings and writes them to its own file, in a folder of the job. The last rank
// that ends merges the files into trace.json, which Perfetto and chrome://tracing display. The events that a rank wrote
// before it died are kept. `lockstep report` merges the files in this case.

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
  // Writes to a new file in the folder <folder>/<job>. The recorder is borrowed and must outlive this object.
  static absl::StatusOr<std::unique_ptr<TraceWriter>> Create(const Recorder& recorder, const std::string& folder);
  // Writes the remaining events, and merges if all ranks have ended. Reports on stderr if a file cannot be written.
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
  RecordedRank written_rank_;  // used by the thread like the following, and by others after its end
  uint64_t next_step_ = 0, next_transfer_ = 0, lost_ = 0;
  size_t written_programs_ = 0;  // characters
  bool failed_ = false;
  std::mutex mutex_;  // guards stop_
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

// Reads the files of a job's folder, by rank. An error if there are none.
absl::StatusOr<std::vector<RankRecord>> ReadTrace(const std::string& folder);

// Writes trace.json from the files in a job's folder. Returns its path.
absl::StatusOr<std::string> MergeTrace(const std::string& folder);

// Returns the folder of the newest job in a folder of traces, or `folder` itself if it is that of a job.
absl::StatusOr<std::string> FindTrace(const std::string& folder);

}  // namespace lockstep
