// Arguments of the pooling kernels, over [planes, spatial] with three spatial dimensions. With fewer, the outermost are
// trivial.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// Tap t of position p of y is element p * stride + t * dilation - low of x.
struct PoolAxis {
  int64_t x, y, size, stride, low, dilation;
};

// max_pool_<dtype>: one thread per element of y. If `maxima` is not null, it receives the position of each maximum in
// its plane of x; y may then be null.
// max_pool_grad_<dtype>: dx from dy, given as `x`, and maxima; one thread per element of dx, given as `y`.
// avg_pool_<dtype>, avg_pool_grad_<dtype>: the same without maxima.
struct PoolArgs {
  static constexpr int kPointers = 3;
  const void* x;
  void* y;
  int32_t* maxima;
  int64_t planes;
  PoolAxis axes[3];
  uint32_t include_padding;
};

}  // namespace lockstep::cuda
