// Pooling. Gradients are gathered: each element of dx visits the windows that cover it, in the order of their
// positions.

#include "backends/cuda/kernels/pooling.h"

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

inline int64_t PlaneOfX(const PoolArgs& a) { return a.axes[0].x * a.axes[1].x * a.axes[2].x; }
inline int64_t PlaneOfY(const PoolArgs& a) { return a.axes[0].y * a.axes[1].y * a.axes[2].y; }

// The element of a thread: its plane, and its position in the plane.
struct PoolElement {
  int64_t plane, image = 0, at;

  // `size` is that of the planes whose elements the threads have.
  PoolElement(const PoolArgs& a, int64_t size) {
    const int64_t number = ThreadOfGrid(), row = number / (a.x_step == 1 ? size : a.channels);
    if (a.x_step == 1) {
      plane = row;
      at = number % size;
      if (a.y_step != 1) image = plane / a.channels;
    } else {
      at = row % size;
      image = row / size;
      plane = image * a.channels + number % a.channels;
    }
  }

  // Returns the position in memory where the plane begins, in a tensor with planes of `size`.
  int64_t Begin(const PoolArgs& a, int64_t size, int64_t step) const {
    return step == 1 ? plane * size : image * size * a.channels + plane - image * a.channels;
  }
};

// Calls f(position in the plane of x) for each element that the window at position `at` of y covers, in order.
template <typename F>
void ForTaps(const PoolArgs& a, int64_t at, F f) {
  const PoolAxis &depth = a.axes[0], &height = a.axes[1], &width = a.axes[2];
  const int64_t w = at % width.y * width.stride - width.low, row = at / width.y;
  const int64_t h = row % height.y * height.stride - height.low, d = row / height.y * depth.stride - depth.low;
  for (int64_t i = 0; i < depth.size; ++i) {
    const int64_t x_d = d + i * depth.dilation;
    if (x_d < 0 || x_d >= depth.x) continue;
    for (int64_t j = 0; j < height.size; ++j) {
      const int64_t x_h = h + j * height.dilation;
      if (x_h < 0 || x_h >= height.x) continue;
      for (int64_t k = 0; k < width.size; ++k) {
        const int64_t x_w = w + k * width.dilation;
        if (x_w >= 0 && x_w < width.x) f((x_d * height.x + x_h) * width.x + x_w);
      }
    }
  }
}

// The positions of the windows along an axis whose first and last taps enclose `place`: those that cover it, and with a
// dilation others too. The divisions, which take long on a GPU, are made once for an element and not for each tap.
struct WindowRange {
  int64_t first, end;

  WindowRange(const PoolAxis& axis, int64_t place) {
    const int64_t offset = place + axis.low;
    const int64_t beyond = offset - (axis.size - 1) * axis.dilation;  // the last tap of the first window is here
    first = beyond <= 0 ? 0 : (beyond + axis.stride - 1) / axis.stride;
    end = offset / axis.stride + 1;
    if (end > axis.y) end = axis.y;
  }
};

// Calls f(position in the plane of y) for each window that encloses position `at` of the plane of x, in order.
template <typename F>
void ForWindows(const PoolArgs& a, int64_t at, F f) {
  const PoolAxis &depth = a.axes[0], &height = a.axes[1], &width = a.axes[2];
  const int64_t row = at / width.x;
  const WindowRange in_depth(depth, row / height.x), in_height(height, row % height.x), in_width(width, at % width.x);
  for (int64_t d = in_depth.first; d < in_depth.end; ++d) {
    for (int64_t h = in_height.first; h < in_height.end; ++h) {
      for (int64_t w = in_width.first; w < in_width.end; ++w) f((d * height.y + h) * width.y + w);
    }
  }
}

// Computes the first maximum of each window, or the first NaN if there is one. A window of only padding has -inf and no
// position.
template <typename T>
void MaxPool(const PoolArgs& a) {
  const PoolElement element(a, PlaneOfY(a));
  if (element.plane >= a.planes) return;
  const T* x = static_cast<const T*>(a.x) + element.Begin(a, PlaneOfX(a), a.x_step);
  using Ordered = typename Number<T>::Ordered;
  int64_t best = -1;
  Ordered largest = 0;
  ForTaps(a, element.at, [&](int64_t place) {
    const Ordered value = Number<T>::OrderedOf(x[place * a.x_step]);
    if (best >= 0 && (largest != largest || value <= largest)) return;
    best = place;
    largest = value;
  });
  if (a.maxima != nullptr) a.maxima[ThreadOfGrid()] = static_cast<int32_t>(best);
  if (a.y == nullptr) return;
  T* y = static_cast<T*>(a.y) + element.Begin(a, PlaneOfY(a), a.y_step);
  y[element.at * a.y_step] = best >= 0 ? x[best * a.x_step] : Number<T>::Of(-__builtin_inf());
}

template <typename T>
void MaxPoolGrad(const PoolArgs& a) {
  const PoolElement element(a, PlaneOfX(a));
  if (element.plane >= a.planes) return;
  const T* dy = static_cast<const T*>(a.x) + element.Begin(a, PlaneOfY(a), a.y_step);
  const int32_t* maxima = a.maxima + element.Begin(a, PlaneOfY(a), a.x_step);
  typename Number<T>::Wide total = 0;
  ForWindows(a, element.at, [&](int64_t window) {
    if (maxima[window * a.x_step] == element.at) total += Number<T>::WideOf(dy[window * a.y_step]);
  });
  static_cast<T*>(a.y)[ThreadOfGrid()] = Number<T>::Of(total);
}

// Returns the number of taps of the window at position `y` that are not padding.
inline int64_t CountTaps(const PoolAxis& axis, int64_t y) {
  const int64_t begin = y * axis.stride - axis.low;
  int64_t count = 0;
  for (int64_t tap = 0; tap < axis.size; ++tap) {
    const int64_t place = begin + tap * axis.dilation;
    count += place >= 0 && place < axis.x;
  }
  return count;
}

// Returns the divisor of a window's average.
inline double DivisorOf(const PoolArgs& a, int64_t window) {
  const PoolAxis &depth = a.axes[0], &height = a.axes[1], &width = a.axes[2];
  if (a.include_padding != 0) return static_cast<double>(depth.size) * static_cast<double>(height.size * width.size);
  const int64_t row = window / width.y;
  return static_cast<double>(CountTaps(depth, row / height.y) * CountTaps(height, row % height.y) *
                             CountTaps(width, window % width.y));
}

template <typename T>
void AvgPool(const PoolArgs& a) {
  const PoolElement element(a, PlaneOfY(a));
  if (element.plane >= a.planes) return;
  const T* x = static_cast<const T*>(a.x) + element.Begin(a, PlaneOfX(a), a.x_step);
  double total = 0;
  ForTaps(a, element.at, [&](int64_t place) { total += Number<T>::WideOf(x[place * a.x_step]); });
  T* y = static_cast<T*>(a.y) + element.Begin(a, PlaneOfY(a), a.y_step);
  y[element.at * a.y_step] = Number<T>::Of(total / DivisorOf(a, element.at));
}

// Averages have no dilation, so that each window encloses only what it covers.
template <typename T>
void AvgPoolGrad(const PoolArgs& a) {
  const PoolElement element(a, PlaneOfX(a));
  if (element.plane >= a.planes) return;
  const T* dy = static_cast<const T*>(a.x) + element.Begin(a, PlaneOfY(a), a.y_step);
  double total = 0;
  ForWindows(a, element.at,
             [&](int64_t window) { total += Number<T>::WideOf(dy[window * a.y_step]) / DivisorOf(a, window); });
  static_cast<T*>(a.y)[ThreadOfGrid()] = Number<T>::Of(total);
}

#define LOCKSTEP_POOLING_KERNELS(K)                               \
  LOCKSTEP_FLOATS(K, max_pool, PoolArgs, false, MaxPool)          \
  LOCKSTEP_FLOATS(K, max_pool_grad, PoolArgs, false, MaxPoolGrad) \
  LOCKSTEP_FLOATS(K, avg_pool, PoolArgs, false, AvgPool)          \
  LOCKSTEP_FLOATS(K, avg_pool_grad, PoolArgs, false, AvgPoolGrad)
LOCKSTEP_KERNELS(Pooling, LOCKSTEP_POOLING_KERNELS)

}  // namespace lockstep::cuda
