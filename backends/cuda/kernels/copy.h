// Arguments of the kernels that move elements of any type. They count units; a kernel's name has the unit's size in
// bytes.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

inline constexpr int kPadDims = 8;

// copy_b*: to[i * to_outer + j * to_middle + k] = from[i * from_outer + j * from_middle + k], one thread per unit.
struct CopyArgs {
  static constexpr int kPointers = 2;
  const void* from;
  void* to;
  int64_t outer, middle, run;
  int64_t from_outer, from_middle, to_outer, to_middle;
};

// pad_b*: y is x at `low`, and `value` (its first bytes) elsewhere; one thread per unit of y.
struct PadArgs {
  static constexpr int kPointers = 2;
  const void* x;
  void* y;
  uint64_t value;
  int64_t total;  // of y
  int64_t rank;
  int64_t x_extents[kPadDims], y_extents[kPadDims], low[kPadDims];
};

}  // namespace lockstep::cuda
