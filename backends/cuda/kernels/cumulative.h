// Arguments of the kernels for cumulative sums and products, of x as [outer, extent, inner].

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// cumulative_<dtype>: one thread per line, which goes through its elements in order.
// cumulative_block_<dtype>: one block per line, for few lines; each thread has a stretch of the line.
struct CumulativeArgs {
  static constexpr int kPointers = 2;
  const void* x;
  void* y;
  int64_t outer, extent, inner;
  uint32_t exclusive, reverse, multiplies;
};

}  // namespace lockstep::cuda
