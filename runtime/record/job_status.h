// Describes the activities of a job's ranks as text, from their records, while the job lives or afterwards. For
// `lockstep status`, and for ranks that wait long. Any thread.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/record/record.h"

namespace lockstep {

class Recorder;

// The last known activity of a rank.
struct Activity {
  enum class Kind {
    kNothing,   // it has recorded nothing yet
    kOutside,   // outside of calls: in the caller's code
    kComputes,  // runs a step other than a collective, or binds inputs
    kWaits,     // waits for peers to start a collective
    kMoves,     // moves a collective's data
  };
  Kind kind = Kind::kNothing;
  int64_t since = 0;  // RecordNow()
  std::string where;  // "call 57 of @step, step 17 onednn.matmul (onnx:/fc1/MatMul)"
};
Activity ActivityOf(const RankRecord& record);

struct RankStatus {
  enum class Process { kAlive, kStopped, kDied };
  const RankRecord* record = nullptr;  // borrowed
  Activity activity;
  Process process = Process::kAlive;
  bool is_late = false;

  bool waits() const { return process == Process::kAlive && activity.kind == Activity::Kind::kWaits; }
  // Returns the word in the table: "begins", "outside", "computes", "waits", "moves", "stopped" or "died".
  const char* state() const;
};
// Returns the ranks with their state, in the order of `records`, which are sorted by IsBefore(). Worlds without a step
// are left out, if there are others. A rank is late if it does not wait while another rank of its world has waited for
// `long_wait` nanoseconds, or if it is stopped or dead while another waits. `now` is RecordNow(), or an earlier moment.
// Waits of some milliseconds occur in every step and make no rank late.
std::vector<RankStatus> StatusOf(const std::vector<RankRecord>& records, int64_t now,
                                 int64_t long_wait = 1'000'000'000);

// Returns these ranks as a table, by world.
//
//   mpi, 2 ranks
//     rank 0  process 4711 on h0  waits     12.0 s  call 57 of @step, step 41 all_reduce.wait bucket 0 (%dw)
//     rank 1  process 4712 on h0  stopped   12.1 s  call 57 of @step, step 17 onednn.matmul (onnx:/fc1/MatMul)
//     late: rank 1
std::string Describe(const std::vector<RankRecord>& records, int64_t now, int64_t long_wait = 1'000'000'000);

// Returns the name of a job. `job` is its name, one of its processes, or the parent of one, such as mpirun; empty: the
// newest job that is alive, otherwise the newest. An error lists the existing jobs.
absl::StatusOr<std::string> FindJob(const std::string& root, std::string_view job);

// Returns the text of the job that FindJob finds.
absl::StatusOr<std::string> StatusText(const std::string& root, std::string_view job);

// Returns the text of the job of a waiting rank, and the command that shows it again.
std::string StallText(const Recorder& recorder);

}  // namespace lockstep
