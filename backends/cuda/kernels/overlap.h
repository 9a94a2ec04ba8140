// Arguments of the kernel that adds windows up where they overlap.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

inline constexpr int kOverlapDims = 4;

// overlap_add_<dtype>: x is [outer, window, positions, inner], y [outer, size, inner], `dims` of each. A thread for
// each element of y.
struct OverlapArgs {
  static constexpr int kPointers = 2;
  const void* x;
  void* y;
  int64_t outer, inner, dims;
  int64_t window[kOverlapDims], positions[kOverlapDims], size[kOverlapDims], stride[kOverlapDims],
      dilation[kOverlapDims];
};

}  // namespace lockstep::cuda
