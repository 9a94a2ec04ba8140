// What is recorded of one rank: events of its own thread, which runs the steps of programs, and of its collectives; and
// the names of these steps. Plain values: recorder.h writes them, record_file.h and trace_file.h read them again.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// What the rank's own thread begins, or has done, at a time. What it began lasts until the next event.
struct StepEvent {
  enum class Kind : uint8_t {
    kCall,     // a run of a program begins: inputs and results are bound
    kStep,     // step `step` of it begins
    kCompare,  // it waits until the ranks have compared what they have in common
    kEnd,      // the run has ended, or is queued on the device; the caller's thread goes on
    kFailed,   // it has ended with an error
  };
  static constexpr int32_t kAllSteps = -1;  // which the backend runs at once

  int64_t time = 0;  // RecordNow()
  int32_t step = 0;
  uint32_t call = 0;  // of the program, from 1
  uint16_t program = 0;
  Kind kind = Kind::kCall;
};

// How far one collective is on this rank. Each comes to all phases, one after the other.
struct TransferEvent {
  enum class Phase : uint8_t {
    kPosted,  // the rank has shown it to its peers
    kMet,     // all ranks that this one exchanges data with have come to it
    kMoved,   // its results are there
  };
  static constexpr size_t kLabelBytes = 96;  // with the final 0

  int64_t time = 0;           // RecordNow()
  uint64_t sequence = 0;      // its number in its communicator
  uint32_t communicator = 0;  // of those that this rank has of the world; 0 is the world's own
  int32_t last = -1;          // of kMet: the rank of the world that came last, or -1
  Phase phase = Phase::kPosted;
  char label[kLabelBytes] = {};
};

struct RecordedStep {
  // Files have the numbers. kPush to kWaitPull are of parameter servers, as in StepKind of
  // runtime/execution/executable.h.
  enum class Kind : uint8_t { kKernel, kCopy, kStart, kWait, kPush, kStartPull, kWaitPull };
  Kind kind = Kind::kKernel;
  std::string name;        // "onednn.matmul", "all_reduce.wait"
  std::string source;      // where the op comes from in the model; may be empty
  std::string label;       // of a collective; of a push and a pull the state's name
  int64_t bytes = 0;       // likewise: of its operand or its result, whichever is larger; of what is pushed or pulled
  bool is_urgent = false;  // of a collective: see CollectiveInfo in runtime/execution/executable.h
};

struct RecordedProgram {
  uint16_t index = 0;
  std::string name;
  std::string part;  // of it, which this rank runs: "stage 1"; empty: the whole
  std::vector<RecordedStep> steps;

  // "step 17 onednn.matmul (onnx:/fc1/MatMul)", "all_reduce.wait bucket 0 (%dw)"
  std::string Describe(int32_t step) const;
};

// Lines, of which any number can follow each other.
std::string ToText(const RecordedProgram& program);
// All whose lines are complete.
std::vector<RecordedProgram> ParsePrograms(std::string_view text);

struct RecordedRank {
  int32_t rank = 0, size = 1;
  int32_t process = 0, parent = 0;
  uint64_t process_start = 0;  // tells a process from a later one with the same number
  int64_t started = 0;         // RecordNow()
  int64_t started_unix = 0;    // nanoseconds since 1970
  int64_t clock_ahead = 0;     // nanoseconds by which this rank's clock is ahead of rank 0's
  uint32_t world = 0;          // number among the worlds of this transport that the process has made
  char host[64] = {}, transport[32] = {};
};

// For what was read from a file, which may be damaged: ends its texts, and those of events. False if no rank has these
// facts.
bool MakeValid(RecordedRank& rank);
void MakeValid(std::vector<TransferEvent>& events);

// Whether both are of one world.
bool IsSameWorld(const RecordedRank& a, const RecordedRank& b);
// The ranks of a world lie together, in their order.
bool IsBefore(const RecordedRank& a, const RecordedRank& b);

struct RankRecord {
  RecordedRank facts;
  std::string failure;  // the first; empty: none
  std::vector<RecordedProgram> programs;
  std::vector<StepEvent> steps;
  std::vector<TransferEvent> transfers;
  uint64_t lost = 0;  // events that were overwritten before they reached a trace

  const RecordedProgram* program(uint16_t index) const;  // null if its names are not there
};

}  // namespace lockstep
