// The record of one rank: events of its own thread, which runs the steps of programs, and of its collectives; and the
// names of the steps. Plain values: recorder.h writes them, record_file.h and trace_file.h read them.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The start or the end of an action of the rank's own thread. An action lasts until the next event.
struct StepEvent {
  enum class Kind : uint8_t {
    kCall,     // a run of a program starts: inputs and results are bound
    kStep,     // step `step` of it starts
    kCompare,  // it waits for the comparison of evidence between ranks
    kEnd,      // the run has ended, or is queued on the device; the caller's thread continues
    kFailed,   // the run has ended with an error
  };
  static constexpr int32_t kAllSteps = -1;  // the backend runs all steps at once

  int64_t time = 0;  // RecordNow()
  int32_t step = 0;
  uint32_t call = 0;  // of the program, from 1
  uint16_t program = 0;
  Kind kind = Kind::kCall;
};

// The progress of one collective on this rank. Each reaches all phases, one after the other.
struct TransferEvent {
  enum class Phase : uint8_t {
    kPosted,  // the rank has published it to its peers
    kMet,     // all ranks with which this one exchanges data have started it
    kMoved,   // its results are complete
  };
  static constexpr size_t kLabelBytes = 96;  // with the final 0

  int64_t time = 0;           // RecordNow()
  uint64_t sequence = 0;      // its number in its communicator
  uint32_t communicator = 0;  // among this rank's communicators in the world; 0 is the world's own
  int32_t last = -1;          // for kMet: the rank of the world that came last, or -1
  Phase phase = Phase::kPosted;
  char label[kLabelBytes] = {};
};

struct RecordedStep {
  // Files contain the numbers. kPush to kWaitPull are for parameter servers, as in StepKind of
  // runtime/execution/executable.h.
  enum class Kind : uint8_t { kKernel, kCopy, kStart, kWait, kPush, kStartPull, kWaitPull };
  Kind kind = Kind::kKernel;
  std::string name;        // "onednn.matmul", "all_reduce.wait"
  std::string source;      // the origin of the op in the model; may be empty
  std::string label;       // of a collective; for a push and a pull, the state's name
  int64_t bytes = 0;       // of a collective's operand or result, whichever is larger; of the pushed or pulled value
  bool is_urgent = false;  // of a collective: CollectiveInfo::is_urgent in runtime/execution/executable.h
};

struct RecordedProgram {
  uint16_t index = 0;
  std::string name;
  std::string part;  // the part that this rank runs: "stage 1"; empty: the whole program
  std::vector<RecordedStep> steps;

  // Returns "step 17 onednn.matmul (onnx:/fc1/MatMul)" or "step 18 all_reduce.wait bucket 0 (%dw)".
  std::string Describe(int32_t step) const;
};

// Returns the program as lines. The lines of several programs may follow each other.
std::string ToText(const RecordedProgram& program);
// Returns all programs whose lines are complete.
std::vector<RecordedProgram> ParsePrograms(std::string_view text);

struct RecordedRank {
  int32_t rank = 0, size = 1;
  int32_t process = 0, parent = 0;
  uint64_t process_start = 0;  // distinguishes a process from a later one with the same number
  int64_t started = 0;         // RecordNow()
  int64_t started_unix = 0;    // nanoseconds since 1970
  int64_t clock_ahead = 0;     // nanoseconds by which this rank's clock is ahead of rank 0's
  uint32_t world = 0;          // the number among the worlds of this transport that the process has made
  char host[64] = {}, transport[32] = {};
};

// For values read from a file, which may be damaged: terminates the texts of the rank and of events. Returns false if
// no rank can have these facts.
bool MakeValid(RecordedRank& rank);
void MakeValid(std::vector<TransferEvent>& events);

// Returns true if both belong to one world.
bool IsSameWorld(const RecordedRank& a, const RecordedRank& b);
// The order of ranks: by world, then by rank.
bool IsBefore(const RecordedRank& a, const RecordedRank& b);

struct RankRecord {
  RecordedRank facts;
  std::string failure;  // the first failure; empty: none
  std::vector<RecordedProgram> programs;
  std::vector<StepEvent> steps;
  std::vector<TransferEvent> transfers;
  uint64_t lost = 0;  // events that were overwritten before they were read, or before they reached a trace

  const RecordedProgram* program(uint16_t index) const;  // null if its names are missing
};

}  // namespace lockstep
