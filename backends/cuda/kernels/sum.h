// Arguments of the kernels that add a term to each of many sums.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// sum_<dtype>: totals += x, which start at 0 with the first term; then y gets them, rounded. `totals` are of 8 bytes.
// A thread for each sum.
struct SumArgs {
  static constexpr int kPointers = 3;
  const void* x;
  void* totals;
  void* y;
  int64_t count;
  uint32_t is_first;
};

}  // namespace lockstep::cuda
