// Arguments of the kernels that add a term to each of many sums.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// sum_<dtype>: totals += x, where totals start at 0 with the first term; then writes them, rounded, to y. `totals` have
// 8 bytes each. One thread per sum.
struct SumArgs {
  static constexpr int kPointers = 3;
  const void* x;
  void* totals;
  void* y;
  int64_t count;
  uint32_t is_first;
};

}  // namespace lockstep::cuda
