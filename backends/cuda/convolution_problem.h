// A convolution or one of its gradients in cuDNN's terms: the three tensors, of which one is computed from the other
// two, and the window. The library uses [N, C, spatial...] with a stride for each dimension, and two or three spatial
// dimensions; a single one becomes two, the first of extent 1. The channels of x and of the filter determine the
// groups. Plain data.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/cudnn.h"
#include "core/graph.h"

namespace lockstep::cuda {

struct ConvolutionProblem {
  enum class Kind { kForward, kGradInput, kGradFilter };
  struct Side {
    std::vector<int64_t> dims, strides;  // strides in elements
  };

  Kind kind = Kind::kForward;
  Side x, filter, y;
  std::vector<int64_t> padding_low, padding_high, stride, dilation;  // by spatial dimension
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;  // the type of accumulation
  bool tf32 = false;                           // f32 products may use the significands of TF32
  uint32_t alignment = 1;  // bytes, a power of two: of all addresses in runs, capped where engines see no difference
  // All three tensors are channels-last, as tensor cores read them, if these may serve and cuDNN's conditions for them
  // are met: the channels of each group fill units of 16 bytes (8 channels of 16 bits), and addresses are aligned to 16
  // bytes. Of 16 bits, x may have any number of channels, such as the 3 of an image, if there is one group: cuDNN pads
  // them faster than it transposes. Otherwise the tensors are row-major: cuDNN pads the channels of such tensors
  // itself, and without tensor cores it transposes nothing.
  bool channels_last = false;
  // The result of a gradient of the filter is f32, and the operands have 16 bits. This is one product of the
  // channels-last operands as matrices, dy' x, for cuBLASLt.
  bool is_wide_product = false;

  // Requires a node that SupportsConvolution (emitters.h) accepts.
  // `alignment` is that of all values; an element is always aligned to its size.
  ConvolutionProblem(const Node& node, bool tf32, uint32_t alignment);

  int64_t groups() const { return x.dims[1] / filter.dims[1]; }

  // The sizes of the node's operands and of its result, in this order.
  std::array<uint64_t, 3> BytesOfTensors() const;

  // The workspace that an engine may use, in bytes. It must be known without a GPU. Most engines that need a workspace
  // copy the three tensors to the layout of tensor cores, channels-last in eights: there is room for that, and for 32
  // MiB of partial sums. An engine that needs more is not used.
  uint64_t WorkspaceLimit() const;

  // Returns a text such as "convolution_grad_filter of x[2,3,8,8], filter[4,3,3,3], y[2,4,8,8], padding [1,1]+[1,1],
  // stride [1,1], dilation [1,1], f32 in tf32".
  std::string ToString() const;

 private:
  uint64_t ElementBytes() const;
};

}  // namespace lockstep::cuda
