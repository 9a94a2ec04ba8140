// Arguments of the pooling kernels, over [images, channels, spatial] with three spatial dimensions. With fewer, the
// outermost are trivial. x and y are row-major or channels-last, each for itself.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// Tap t of position p of y is element p * stride + t * dilation - low of x.
struct PoolAxis {
  int64_t x, y, size, stride, low, dilation;
};

// max_pool_<dtype>: one thread per element of y. If `maxima` is not null, it receives the position of each maximum in
// its plane of x, in the layout of x; y may then be null.
// max_pool_grad_<dtype>: dx from dy, given as `x`, and maxima; one thread per element of dx, given as `y`.
// avg_pool_<dtype>, avg_pool_grad_<dtype>: the same without maxima.
// Adjacent threads have adjacent elements in the layout of x, or of dx.
struct PoolArgs {
  static constexpr int kPointers = 3;
  const void* x;
  void* y;
  int32_t* maxima;
  int64_t planes;  // images * channels
  int64_t channels;
  int64_t x_step, y_step;  // between neighbours of a plane of x, y, dx or dy: 1, or `channels` if channels-last
  PoolAxis axes[3];
  uint32_t include_padding;
};

}  // namespace lockstep::cuda
