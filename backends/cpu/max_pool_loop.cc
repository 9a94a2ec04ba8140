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
// Of the 16 bits alone: to make a float of each takes longer than to load it.
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
// As quick as memory, with the vectors of the processor at hand.
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

template <typename T, typename Tap>
void MaxPoolLoop::ForwardOf(const T* x, T* y, Tap* taps, int threads) const {
#pragma omp parallel for num_threads(threads)
  for (int64_t plane = 0; plane < planes(); ++plane) {
    const T* from = x + First(plane, x_plane());
    T* to = y + First(plane, y_plane());
    for (int64_t p = 0; p < y_plane(); ++p) {
      int64_t best = -1;
      float largest = 0;
      for (int64_t tap = 0; tap < this->taps() && !std::isnan(largest); ++tap) {  // to the first NaN, if there is one
        const int64_t at = At(p, tap);
        if (at < 0) continue;
        const auto value = static_cast<float>(from[at * step()]);
        if (best >= 0 && value <= largest) continue;
        best = tap;
        largest = value;
      }
      to[p * step()] = from[At(p, best) * step()];
      if (taps != nullptr) taps[plane * y_plane() + p] = static_cast<Tap>(best);
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
