// What the ranks of a job do, as text, from what they have recorded: of a living job or a dead one. For `lockstep
// status`, and for ranks that wait long. Any thread.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/record/record.h"

namespace lockstep {

class Recorder;

// What a rank has last been seen to do.
struct Activity {
  enum class Kind {
    kNothing,   // it has recorded nothing yet
    kOutside,   // of calls: in the caller's code
    kComputes,  // runs a step that is no collective, or binds inputs
    kWaits,     // for peers to come to a collective
    kMoves,     // a collective's data
  };
  Kind kind = Kind::kNothing;
  int64_t since = 0;  // RecordNow()
  std::string where;  // "call 57 of @step, step 17 onednn.matmul (onnx:/fc1/MatMul)"
};
Activity ActivityOf(const RankRecord& record);

// The table of the ranks, by world, and who is late: those that do not wait when another has waited for `long_wait`
// nanoseconds, or that are stopped or dead when another waits; `now` is RecordNow(), or that of the moment that is
// asked about. In every step ranks wait for each other for some milliseconds, and none is late.
//
//   mpi, 2 ranks
//     rank 0  process 4711 on h0  waits     12.0 s  call 57 of @step, step 41 all_reduce.wait bucket 0 (%dw)
//     rank 1  process 4712 on h0  stopped   12.1 s  call 57 of @step, step 17 onednn.matmul (onnx:/fc1/MatMul)
//     late: rank 1
std::string Describe(const std::vector<RankRecord>& records, int64_t now, int64_t long_wait = 1'000'000'000);

// Of one job: `job` is its name, or a process of it, or that process' parent, such as mpirun; empty: the newest that is
// alive, or else the newest. An error lists those that there are.
absl::StatusOr<std::string> StatusText(const std::string& root, std::string_view job);

// Of the job of a rank that waits, and how to see it again.
std::string StallText(const Recorder& recorder);

}  // namespace lockstep
