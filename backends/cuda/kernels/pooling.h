// Arguments of the pooling kernels, over [planes, spatial] with three spatial dimensions, the outermost trivial where
// there are fewer.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// Position p of y has with tap t element p * stride + t * dilation - low of x.
struct PoolAxis {
  int64_t x, y, size, stride, low, dilation;
};

// max_pool_<dtype>: a thread for each element of y. Where `maxima` is not null it gets, for each, where in its plane of
// x the maximum is; y may be null then.
// max_pool_grad_<dtype>: dx from dy, given as `x`, and maxima; a thread for each element of dx, given as `y`.
// avg_pool_<dtype>, avg_pool_grad_<dtype>: likewise, without maxima.
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
