// Arguments of the pooling kernels, over [images, channels, spatial] with three spatial dimensions. With fewer, the
// outermost are trivial. x and y are row-major or channels-last, each for itself. A plane has fewer than 2^31 elements.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

// A number below 2^31 to divide by; 0 is stored as 1, since nothing is divided then. The quotient of a number below
// 2^31 is computed with a product, because GPUs have no instruction that divides integers.
struct Divisor {
  uint32_t value, factor, shift;

  Divisor() = default;
  constexpr explicit Divisor(int64_t number)
      : value(number == 0 ? 1 : static_cast<uint32_t>(number)), factor(1), shift(0) {
    while ((uint64_t{1} << shift) < value) ++shift;
    factor += static_cast<uint32_t>((((uint64_t{1} << shift) - value) << 32) / value);
  }
};

constexpr uint32_t operator/(uint32_t number, const Divisor& divisor) {
  const auto high = static_cast<uint32_t>(static_cast<uint64_t>(number) * divisor.factor >> 32);
  return (high + number) >> divisor.shift;
}

// Tap t of position p of y is element p * stride + t * dilation - low of x. `span` is the distance between a window's
// first and last tap, plus 1.
struct PoolAxis {
  int32_t x, y, size, low, span;
  Divisor stride, dilation;
  Divisor extent;  // of the planes whose elements the threads have: y, or x in gradients
};

// Distances between neighbours in a tensor.
struct PoolSteps {
  int64_t image, channel, place;
};

// The channels of an image are divided into groups of kGroupBytes. A thread has one group at one position of
// a plane. Adjacent threads have adjacent positions or, if `is_by_channels`, adjacent groups.
inline constexpr int64_t kGroupBytes = 16;

// max_pool_<dtype>: one thread per group and position of y. `y` may be null. If `winners` is not null, it receives for
// each thread and channel which tap of the window is the maximum: (d * span of height + h) * span of width + w for the
// tap that is d, h and w elements of x after the first; in 1 byte, or 4 if `are_winners_wide`.
// max_pool_grad_<dtype>: dx from dy, given as `x`, and winners; one thread per group and position of dx, given as `y`.
// avg_pool_<dtype>, avg_pool_grad_<dtype>: the same without winners.
struct PoolArgs {
  static constexpr int kPointers = 3;
  const void* x;
  void* y;
  void* winners;
  int64_t images, channels;
  Divisor inner, outer;        // the groups of an image and the places of a plane of threads, or the reverse
  PoolSteps x_steps, y_steps;  // of x or dx, and of y or dy
  PoolSteps winner_steps;      // between groups, not channels, counted in groups
  PoolAxis axes[3];
  uint32_t is_by_channels, are_winners_wide, include_padding;
};

}  // namespace lockstep::cuda
