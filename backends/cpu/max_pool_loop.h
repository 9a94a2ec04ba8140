// Max pooling with plain loops, for cases in which oneDNN differs from the op, or is slow: it ignores NaN, and treats
// -inf as the lowest finite number. Here, as in the op, a NaN is the maximum of its window. pooling.cc uses these loops
// instead of the primitive if x contains such a value, and where oneDNN has no fast implementation.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/graph.h"

namespace lockstep::cpu {

// Returns true if one of `count` elements is NaN or -inf. Requires f32, f16 or bf16.
bool HoldsNanOrMinusInfinity(DType dtype, const std::byte* x, int64_t count, int threads);

class MaxPoolLoop {
 public:
  // Requires a max_pool or max_pool_grad whose x and y are both channels-last or both row-major.
  MaxPoolLoop(const Node& node, bool channels_last);

  bool is_channels_last() const { return channels_last_; }
  // True if some window covers only padding.
  bool has_empty_window() const;
  // The size of the taps that Forward writes for Backward.
  uint64_t taps_bytes() const {
    return static_cast<uint64_t>(planes() * y_plane()) * (has_small_taps() ? sizeof(uint8_t) : sizeof(int32_t));
  }

  // `taps` may be null. Requires that no window is empty, and f32, f16 or bf16.
  void Forward(DType dtype, const std::byte* x, std::byte* y, std::byte* taps, int threads) const;
  void Backward(DType dtype, const std::byte* taps, const std::byte* dy, std::byte* dx, int threads) const;

 private:
  // One spatial dimension. With fewer than three, the outermost are trivial.
  struct Axis {
    int64_t x = 1, y = 1, size = 1, stride = 1, low = 0, dilation = 1;

    // The position in x of a tap of the window at a position of y; -1 in the padding.
    int64_t PlaceOf(int64_t position, int64_t tap) const {
      const int64_t place = position * stride + tap * dilation - low;
      return place < x ? std::max<int64_t>(place, -1) : -1;
    }
  };
  struct Maximum {
    int64_t tap = -1, at = -1;  // in its window, and in its plane
  };
  template <typename T>
  Maximum FirstMaximum(const T* plane, int64_t d, int64_t h, int64_t w) const;
  template <typename T, typename Tap>
  void ForwardOf(const T* x, T* y, Tap* taps, int threads) const;
  template <typename T, typename Tap>
  void BackwardOf(const Tap* taps, const T* dy, T* dx, int threads) const;

  // The position in a plane of x of tap `tap` of output position `p`; -1 in the padding. Taps are numbered in row-major
  // order.
  int64_t At(int64_t p, int64_t tap) const;
  int64_t taps() const { return axes_[0].size * axes_[1].size * axes_[2].size; }
  bool has_small_taps() const { return taps() <= 256; }
  int64_t planes() const { return samples_ * channels_; }
  int64_t x_plane() const { return axes_[0].x * axes_[1].x * axes_[2].x; }
  int64_t y_plane() const { return axes_[0].y * axes_[1].y * axes_[2].y; }
  // The first element of a plane; step() is the distance between its elements.
  int64_t First(int64_t plane, int64_t size) const {
    return channels_last_ ? plane / channels_ * channels_ * size + plane % channels_ : plane * size;
  }
  int64_t step() const { return channels_last_ ? channels_ : 1; }

  std::array<Axis, 3> axes_;
  int64_t samples_ = 1, channels_ = 1;
  bool channels_last_ = false;
};

}  // namespace lockstep::cpu
