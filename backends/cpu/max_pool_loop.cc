#include "backends/cpu/max_pool_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/op_def.h"

namespace lockstep::cpu {
namespace {

using Ints = std::vector<int64_t>;

template <typename T>
bool IsNanOrMinusInfinity(T x) {
  return !(static_cast<float>(x) > -std::numeric_limits<float>::infinity());
}
// Tests the 16 bits, because converting each element to float takes longer than loading it.
template <typename Half, uint16_t kInfinity>
bool IsNanOrMinusInfinityHalf(Half x) {
  return (x.bits & 0x7fff) > kInfinity || x.bits == (0x8000 | kInfinity);
}
template <>
bool IsNanOrMinusInfinity(Float16 x) {
  return IsNanOrMinusInfinityHalf<Float16, 0x7c00>(x);
}
template <>
bool IsNanOrMinusInfinity(BFloat16 x) {
  return IsNanOrMinusInfinityHalf<BFloat16, 0x7f80>(x);
}

template <typename T>
[[gnu::always_inline]] inline bool AnyOf(const T* x, int64_t count) {
  int found = 0;
#pragma omp simd reduction(| : found)
  for (int64_t i = 0; i < count; ++i) found |= IsNanOrMinusInfinity(x[i]) ? 1 : 0;
  return found != 0;
}
bool Any(const Float16* x, int64_t count) { return AnyOf(x, count); }
bool Any(const BFloat16* x, int64_t count) { return AnyOf(x, count); }
// Limited by memory speed; uses the processor's vectors.
__attribute__((target_clones("avx512f", "avx2", "default"))) bool Any(const float* x, int64_t count) {
  return AnyOf(x, count);
}

// Calls f with a value of the dtype's C++ type.
template <typename F>
auto DispatchFloat(DType dtype, F f) {
  if (dtype == DType::kF16) return f(Float16());
  if (dtype == DType::kBF16) return f(BFloat16());
  LOCKSTEP_CHECK(dtype == DType::kF32) << dtype;
  return f(float());
}

}  // namespace

bool HoldsNanOrMinusInfinity(DType dtype, const std::byte* x, int64_t count, int threads) {
  constexpr int64_t kPart = 32768;  // worth a thread
  const int64_t parts = std::clamp<int64_t>(count / kPart, 1, threads);
  return DispatchFloat(dtype, [&](auto element) {
    const auto* elements = reinterpret_cast<const decltype(element)*>(x);
    if (parts == 1) return Any(elements, count);
    int found = 0;
#pragma omp parallel for num_threads(static_cast<int>(parts)) reduction(| : found)
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = count * part / parts, last = count * (part + 1) / parts;
      found |= Any(elements + first, last - first) ? 1 : 0;
    }
    return found != 0;
  });
}

MaxPoolLoop::MaxPoolLoop(const Node& node, bool channels_last) : channels_last_(channels_last) {
  const Shape& x = node.operand(0).shape();
  const Shape& y = node.Is("max_pool") ? node.type().shape : node.operand(1).shape();
  samples_ = x[0];
  channels_ = x[1];
  const Ints& sizes = node.attr<Ints>("window");
  for (size_t i = 0; i < sizes.size(); ++i) {
    axes_[3 - sizes.size() + i] = {x.dims()[i + 2],
                                   y.dims()[i + 2],
                                   sizes[i],
                                   node.attr<Ints>("stride")[i],
                                   node.attr<Ints>("padding_low")[i],
                                   node.attr<Ints>("dilation")[i]};
  }
}

int64_t MaxPoolLoop::At(int64_t p, int64_t tap) const {
  int64_t position = 0, stride = 1;
  for (size_t i = axes_.size(); i-- > 0;) {
    const Axis& axis = axes_[i];
    const int64_t at = p % axis.y * axis.stride + tap % axis.size * axis.dilation - axis.low;
    if (at < 0 || at >= axis.x) return -1;
    position += at * stride;
    stride *= axis.x;
    p /= axis.y;
    tap /= axis.size;
  }
  return position;
}

bool MaxPoolLoop::has_empty_window() const {
  for (int64_t p = 0; p < y_plane(); ++p) {
    bool empty = true;
    for (int64_t tap = 0; tap < taps() && empty; ++tap) empty = At(p, tap) < 0;
    if (empty) return true;
  }
  return false;
}

template <typename T>
MaxPoolLoop::Maximum MaxPoolLoop::FirstMaximum(const T* plane, int64_t d, int64_t h, int64_t w) const {
  Maximum best;
  float largest = 0;
  for (int64_t i = 0; i < axes_[0].size; ++i) {
    const int64_t x_d = axes_[0].PlaceOf(d, i);
    for (int64_t j = 0; x_d >= 0 && j < axes_[1].size; ++j) {
      const int64_t x_h = axes_[1].PlaceOf(h, j);
      for (int64_t k = 0; x_h >= 0 && k < axes_[2].size; ++k) {
        const int64_t x_w = axes_[2].PlaceOf(w, k), at = (x_d * axes_[1].x + x_h) * axes_[2].x + x_w;
        if (x_w < 0) continue;
        const auto value = static_cast<float>(plane[at * step()]);
        if (best.tap >= 0 && value <= largest) continue;
        best = {(i * axes_[1].size + j) * axes_[2].size + k, at};
        largest = value;
        if (std::isnan(largest)) return best;
      }
    }
  }
  return best;
}

template <typename T, typename Tap>
void MaxPoolLoop::ForwardOf(const T* x, T* y, Tap* taps, int threads) const {
#pragma omp parallel for num_threads(threads)
  for (int64_t plane = 0; plane < planes(); ++plane) {
    const T* from = x + First(plane, x_plane());
    T* to = y + First(plane, y_plane());
    int64_t p = 0;
    for (int64_t d = 0; d < axes_[0].y; ++d) {
      for (int64_t h = 0; h < axes_[1].y; ++h) {
        for (int64_t w = 0; w < axes_[2].y; ++w, ++p) {
          const Maximum best = FirstMaximum(from, d, h, w);
          to[p * step()] = from[best.at * step()];
          if (taps != nullptr) taps[plane * y_plane() + p] = static_cast<Tap>(best.tap);
        }
      }
    }
  }
}

template <typename T, typename Tap>
void MaxPoolLoop::BackwardOf(const Tap* taps, const T* dy, T* dx, int threads) const {
#pragma omp parallel for num_threads(threads)
  for (int64_t plane = 0; plane < planes(); ++plane) {
    std::vector<float> sums(static_cast<size_t>(x_plane()), 0.0F);
    const T* from = dy + First(plane, y_plane());
    for (int64_t p = 0; p < y_plane(); ++p)
      sums[static_cast<size_t>(At(p, taps[plane * y_plane() + p]))] += static_cast<float>(from[p * step()]);
    T* to = dx + First(plane, x_plane());
    for (int64_t at = 0; at < x_plane(); ++at) to[at * step()] = T(sums[static_cast<size_t>(at)]);
  }
}

void MaxPoolLoop::Forward(DType dtype, const std::byte* x, std::byte* y, std::byte* taps, int threads) const {
  DispatchFloat(dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = reinterpret_cast<const T*>(x);
    T* to = reinterpret_cast<T*>(y);
    if (has_small_taps()) ForwardOf(from, to, reinterpret_cast<uint8_t*>(taps), threads);
    else ForwardOf(from, to, reinterpret_cast<int32_t*>(taps), threads);
  });
}

void MaxPoolLoop::Backward(DType dtype, const std::byte* taps, const std::byte* dy, std::byte* dx, int threads) const {
  DispatchFloat(dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = reinterpret_cast<const T*>(dy);
    T* to = reinterpret_cast<T*>(dx);
    if (has_small_taps()) BackwardOf(reinterpret_cast<const uint8_t*>(taps), from, to, threads);
    else BackwardOf(reinterpret_cast<const int32_t*>(taps), from, to, threads);
  });
}

}  // namespace lockstep::cpu
