// Attributes that ONNX's convolutions and poolings share: strides, dilations, explicit or automatic padding. Internal;
// pure.

#pragma once

#include <vector>

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// One entry for each spatial dimension of x.
struct OnnxWindows {
  std::vector<int64_t> size, stride, dilation, padding_low, padding_high;
  // The number of elements by which windows extend past the padding because of ceil_mode; the last window is then
  // incomplete.
  std::vector<int64_t> overhang;
};

// Reads strides, dilations, pads, auto_pad and ceil_mode of an operator on x = input 0 with windows of `size`.
absl::StatusOr<OnnxWindows> ReadWindows(OnnxNode& n, std::vector<int64_t> size, bool has_dilation, bool has_ceil_mode);

}  // namespace lockstep
