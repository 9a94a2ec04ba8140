// What the caller of a loop knows of it, whoever wrote its code. Plain values; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// What a loop returns.
inline constexpr int32_t kLoopOk = 0;
// If the node at `position` in its body refuses an element (OpDef::Refuses), and that position from what it returned.
// A quotient by zero is 0, what is not within its bounds is the lower one.
constexpr int32_t LoopRefusal(size_t position) { return static_cast<int32_t>(position) + 1; }
constexpr size_t PositionOfRefusal(int32_t error) { return static_cast<size_t>(error - 1); }

// What is known of a loop before there is code for it.
struct LoopInfo {
  // For each result the operands (by position among the inputs) whose buffer it may be given: each element is read
  // before it is overwritten. One operand may be overwritten by one result. No other overlap of a result with
  // anything is allowed.
  std::vector<std::vector<int>> in_place;
  int64_t extent = 0;         // number of units; 0 if there is nothing to do
  int64_t grain = 1;          // so many units are worth a thread of their own
  int64_t scratch_bytes = 0;  // memory that run() and finish() share, aligned to 64 bytes, with any content
  bool has_finish = false;
};

}  // namespace lockstep
