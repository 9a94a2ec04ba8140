// Arguments of the kernel that adds overlapping windows.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

inline constexpr int kOverlapDims = 4;

// overlap_add_<dtype>: x is [outer, window, positions, inner], y is [outer, size, inner]; window, positions and size
// have `dims` dimensions each. One thread per element of y.
struct OverlapArgs {
  static constexpr int kPointers = 2;
  const void* x;
  void* y;
  int64_t outer, inner, dims;
  int64_t window[kOverlapDims], positions[kOverlapDims], size[kOverlapDims], stride[kOverlapDims],
      dilation[kOverlapDims];
};

}  // namespace lockstep::cuda
