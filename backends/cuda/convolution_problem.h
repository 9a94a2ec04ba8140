// A convolution or a gradient of one in cuDNN's terms: the three sides, whatever is computed from the other two, and
// the window. The library sees [N, C, spatial...] with a stride for each dimension, and two or three spatial
// dimensions: one is seen as two, the first of extent 1. Groups are what the channels of x and of the filter say. Plain
// values.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/cudnn.h"
#include "core/graph.h"

namespace lockstep::cuda {

struct ConvolutionProblem {
  enum class Kind { kForward, kGradInput, kGradFilter };
  struct Side {
    std::vector<int64_t> dims, strides;  // strides in elements: of row-major values, but any will do
  };

  Kind kind = Kind::kForward;
  Side x, filter, y;
  std::vector<int64_t> padding_low, padding_high, stride, dilation;  // by spatial dimension
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;  // in what products are added
  bool tf32 = false;                           // f32 may be multiplied with the significands of TF32
  uint32_t alignment = 1;  // bytes, a power of two: of all addresses that it is run with, as far as engines ask

  // Of a `convolution`, `convolution_grad_input` or `convolution_grad_filter` node, none of whose sides is empty.
  // `alignment` is that of all values; an element is aligned to its size in any case.
  ConvolutionProblem(const Node& node, bool tf32, uint32_t alignment);

  int64_t groups() const { return x.dims[1] / filter.dims[1]; }

  // The workspace that an engine may have, in bytes; it must be known before there is a GPU. Engines that need one
  // mostly copy the three sides to the layout of tensor cores, channels last and in eights: there is room for that,
  // and for 32 MiB of parts of sums. An engine that wants more is not used.
  uint64_t WorkspaceLimit() const;

  // "convolution_grad_filter of x[2,3,8,8], filter[4,3,3,3], y[2,4,8,8], padding [1,1]+[1,1], stride [1,1],
  // dilation [1,1], f32 in tf32"
  std::string ToString() const;
};

}  // namespace lockstep::cuda
