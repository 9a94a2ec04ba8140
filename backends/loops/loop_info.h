// The facts about a loop that its caller needs, for all code generators. Plain data; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// A loop returns kLoopOk or LoopRefusal(position).
inline constexpr int32_t kLoopOk = 0;
// The error code if the node at `position` in the body refuses an element (OpDef::ChecksData), and the position from
// the code. The result of a refused division is 0; that of a value out of bounds is the lower bound.
constexpr int32_t LoopRefusal(size_t position) { return static_cast<int32_t>(position) + 1; }
constexpr size_t PositionOfRefusal(int32_t error) { return static_cast<size_t>(error - 1); }

// The facts about a loop that are known before its code exists.
struct LoopInfo {
  // For each result the operands (by position among the inputs) whose buffer it may use: each element is read before it
  // is overwritten. One operand may be overwritten by one result. Other overlaps of a result with operands or results
  // are not allowed.
  std::vector<std::vector<int>> in_place;
  int64_t extent = 0;         // number of units; 0 if there is nothing to do
  int64_t grain = 1;          // the number of units that are worth a thread
  int64_t scratch_bytes = 0;  // scratch memory that run() and finish() share, aligned to 64 bytes; its initial content
                              // does not matter
  bool has_finish = false;
};

}  // namespace lockstep
