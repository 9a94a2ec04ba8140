// The arithmetic of sliding windows over N,C,spatial values, for convolution and pooling. For the authors of op blocks
// only.

#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "core/op_def.h"

namespace lockstep::ops {

// The bound of extents, strides, paddings and dilations: far below what could overflow in window arithmetic.
inline constexpr int64_t kLargestWindowValue = int64_t{1} << 30;

// A window along one spatial dimension.
struct Window {
  int64_t size = 1, stride = 1, padding_low = 0, padding_high = 0, dilation = 1;

  // The number of input elements that the window spans: `size` taps that are `dilation` apart.
  int64_t span() const { return (size - 1) * dilation + 1; }
  // The number of its positions in `input` elements and the padding. Requires that there is one.
  int64_t Positions(int64_t input) const { return (input + padding_low + padding_high - span()) / stride + 1; }
};

// A window with its input and output extents. Tap k of output position p reads input element p * stride + Offset(k).
struct WindowAxis {
  int64_t input = 1, output = 1;
  Window window;

  int64_t Offset(int64_t tap) const { return tap * window.dilation - window.padding_low; }
  // The output positions [Begin, End) at which the tap reads the input and not the padding; empty if End <= Begin.
  int64_t Begin(int64_t tap) const {
    const int64_t offset = Offset(tap);
    return offset >= 0 ? 0 : (window.stride - 1 - offset) / window.stride;
  }
  int64_t End(int64_t tap) const {
    const int64_t last = input - 1 - Offset(tap);
    return last < 0 ? 0 : std::min(output, last / window.stride + 1);
  }
};

// The windows of the given sizes with the attributes stride, padding_low, padding_high and, if the op has it, dilation.
// Requires checked attributes.
std::vector<Window> WindowsOf(const NodeContext& c, const std::vector<int64_t>& sizes);

// The spatial extents of the result for an input `x` of N,C,spatial. Checks for all ops:
//   (C3) the attributes and `sizes` have one value per spatial dimension of x
//   (C4) strides, dilations and sizes are at least 1, paddings at least 0, and none is above 2^30
//   (C5) the window, dilated, fits into the padded input
absl::StatusOr<std::vector<int64_t>> CheckWindows(const NodeContext& c, const Shape& x,
                                                  const std::vector<int64_t>& sizes);

// The same windows as three axes. With fewer spatial dimensions the outermost axes are trivial. Requires checked
// attributes.
std::array<WindowAxis, 3> ThreeAxes(const NodeContext& c, const Shape& x, const Shape& y,
                                    const std::vector<int64_t>& sizes);

// The dimensions of an N,C,spatial shape after the first two.
std::vector<int64_t> SpatialDims(const Shape& shape);

}  // namespace lockstep::ops
