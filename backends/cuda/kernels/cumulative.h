// Arguments of the kernels for cumulative sums and products, of x as [outer, extent, inner].

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// cumulative_<dtype>: a thread for each line, one element after the other.
// cumulative_block_<dtype>: a block of threads for each line, where there are few: a thread for each stretch of it.
struct CumulativeArgs {
  static constexpr int kPointers = 2;
  const void* x;
  void* y;
  int64_t outer, extent, inner;
  uint32_t exclusive, reverse, multiplies;
};

}  // namespace lockstep::cuda
