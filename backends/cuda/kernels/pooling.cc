// Pooling. Gradients are gathered: each element of dx visits the windows that cover it, in the order of their
// positions. A thread has several channels at one position, so that it computes coordinates once for all of them.

#include "backends/cuda/kernels/pooling.h"

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

template <typename T>
using Group = Pack<T, kLanes<T>>;

template <typename T>
Group<T> Rounded(const double (&totals)[kLanes<T>]) {
  Group<T> group;
  LOCKSTEP_UNROLL
  for (int lane = 0; lane < kLanes<T>; ++lane) group.of[lane] = Number<T>::Of(totals[lane]);
  return group;
}

// Returns number / divisor for any number.
inline int64_t Quotient(int64_t number, const Divisor& divisor) {
  return number < (int64_t{1} << 31) ? static_cast<uint32_t>(number) / divisor : number / divisor.value;
}

// The group of channels of a thread, and its position.
struct PoolThread {
  int64_t image;
  uint32_t group, place;

  explicit PoolThread(const PoolArgs& a) {
    const int64_t number = ThreadOfGrid(), rest = Quotient(number, a.inner);
    image = Quotient(rest, a.outer);
    const auto in_inner = static_cast<uint32_t>(number - rest * a.inner.value);
    const auto in_outer = static_cast<uint32_t>(rest - image * a.outer.value);
    group = a.is_by_channels != 0 ? in_inner : in_outer;
    place = a.is_by_channels != 0 ? in_outer : in_inner;
  }
};

// A thread's channels of a tensor, which are loaded and stored at once if they are adjacent and aligned. Lanes beyond
// the last channel repeat it: they load and store its element again.
template <typename T>
struct Channels {
  T* first;
  PoolSteps steps;
  int last;
  bool is_packed;

  Channels(const PoolArgs& a, const void* data, const PoolSteps& given, const PoolThread& thread) : steps(given) {
    const int64_t channel = static_cast<int64_t>(thread.group) * kLanes<T>, rest = a.channels - channel;
    first = static_cast<T*>(const_cast<void*>(data)) + thread.image * steps.image + channel * steps.channel;
    last = rest < kLanes<T> ? static_cast<int>(rest) - 1 : kLanes<T> - 1;
    // All tensors then have a multiple of kGroupBytes bytes, so that the slices of a loop are also aligned.
    is_packed = steps.channel == 1 && a.channels % kLanes<T> == 0;
  }

  T* At(uint32_t place, int lane) const {
    return first + place * steps.place + (lane < last ? lane : last) * steps.channel;
  }

  Group<T> Load(uint32_t place) const {
    if (is_packed) return LoadPack<T, kLanes<T>>(At(place, 0));
    Group<T> group;
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kLanes<T>; ++lane) group.of[lane] = *At(place, lane);
    return group;
  }

  void Store(uint32_t place, const Group<T>& group) const {
    if (is_packed) return StorePack(At(place, 0), group);
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kLanes<T>; ++lane) *At(place, lane) = group.of[lane];
  }
};

// The winners of a thread's channels.
template <int kCount>
struct Winners {
  using Narrow = Pack<uint8_t, kCount>;
  using Wide = Pack<uint32_t, kCount>;
  const PoolArgs& a;
  int64_t first;

  Winners(const PoolArgs& args, const PoolThread& thread)
      : a(args), first(thread.image * a.winner_steps.image + thread.group * a.winner_steps.channel) {}

  Wide Load(uint32_t place) const {
    const int64_t at = first + place * a.winner_steps.place;
    if (a.are_winners_wide != 0) return static_cast<const Wide*>(a.winners)[at];
    const Narrow narrow = static_cast<const Narrow*>(a.winners)[at];
    Wide winners;
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kCount; ++lane) winners.of[lane] = narrow.of[lane];
    return winners;
  }

  void Store(uint32_t place, const Wide& winners) const {
    const int64_t at = first + place * a.winner_steps.place;
    if (a.are_winners_wide != 0) {
      static_cast<Wide*>(a.winners)[at] = winners;
      return;
    }
    Narrow narrow;
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kCount; ++lane) narrow.of[lane] = static_cast<uint8_t>(winners.of[lane]);
    static_cast<Narrow*>(a.winners)[at] = narrow;
  }
};

// The place of a position in a plane of the threads.
struct Coordinates {
  uint32_t of[3];

  Coordinates(const PoolArgs& a, uint32_t place) {
    const uint32_t row = place / a.axes[2].extent;
    of[2] = place - row * a.axes[2].extent.value;
    of[0] = row / a.axes[1].extent;
    of[1] = row - of[0] * a.axes[1].extent.value;
  }
};

// The taps of a window along an axis that are on x.
struct TapRange {
  int32_t first, begin, end;  // `first` is where tap 0 is

  TapRange(const PoolAxis& axis, uint32_t y) : first(static_cast<int32_t>(y * axis.stride.value) - axis.low) {
    begin = first >= 0 ? 0 : static_cast<int32_t>((-first + axis.dilation.value - 1) / axis.dilation);
    end = first >= axis.x ? 0 : static_cast<int32_t>(static_cast<uint32_t>(axis.x - 1 - first) / axis.dilation) + 1;
    if (end > axis.size) end = axis.size;
  }

  int32_t count() const { return end > begin ? end - begin : 0; }
};

struct Window {
  const PoolArgs& a;
  TapRange depth, height, width;

  Window(const PoolArgs& args, const Coordinates& at)
      : a(args), depth(a.axes[0], at.of[0]), height(a.axes[1], at.of[1]), width(a.axes[2], at.of[2]) {}

  // Calls f(position in the plane of x, number of the tap) for each tap on x, in order. Numbers are those of winners.
  template <typename F>
  void ForTaps(F f) const {
    const uint32_t d_step = a.axes[0].dilation.value, h_step = a.axes[1].dilation.value,
                   w_step = a.axes[2].dilation.value;
    for (int32_t i = depth.begin; i < depth.end; ++i) {
      const uint32_t d = i * d_step, x_d = depth.first + d;
      for (int32_t j = height.begin; j < height.end; ++j) {
        const uint32_t h = j * h_step, row = (x_d * a.axes[1].x + height.first + h) * a.axes[2].x + width.first;
        const uint32_t number = (d * a.axes[1].span + h) * a.axes[2].span;
        for (int32_t k = width.begin; k < width.end; ++k) f(row + k * w_step, number + k * w_step);
      }
    }
  }

  // Returns the number of the first tap on x; 0 if there is none, since then the first tap is not on x.
  uint32_t FirstTap() const {
    if (depth.count() == 0 || height.count() == 0 || width.count() == 0) return 0;
    const uint32_t d = depth.begin * a.axes[0].dilation.value, h = height.begin * a.axes[1].dilation.value;
    return (d * a.axes[1].span + h) * a.axes[2].span + width.begin * a.axes[2].dilation.value;
  }

  // Returns the divisor of its average.
  double divisor() const {
    if (a.include_padding != 0) return static_cast<double>(a.axes[0].size) * a.axes[1].size * a.axes[2].size;
    return static_cast<double>(depth.count()) * height.count() * width.count();
  }
};

// The positions of the windows along an axis whose first and last taps enclose `place`: those that cover it, and with a
// dilation others too.
struct WindowRange {
  uint32_t offset, first, end;

  WindowRange(const PoolAxis& axis, uint32_t place) : offset(place + axis.low) {
    const uint32_t span = axis.span;
    first = offset < span ? 0 : (offset - span) / axis.stride + 1;
    end = offset / axis.stride + 1;
    if (end > static_cast<uint32_t>(axis.y)) end = axis.y;
  }
};

// Calls f(coordinates of the window, its position in the plane of y, number of the tap that the element would be) for
// each window that encloses `at` of the plane of x, in order. An element between a window's taps has a number that no
// tap has.
template <typename F>
void ForWindows(const PoolArgs& a, Coordinates at, F f) {
  const WindowRange depth(a.axes[0], at.of[0]), height(a.axes[1], at.of[1]), width(a.axes[2], at.of[2]);
  for (at.of[0] = depth.first; at.of[0] < depth.end; ++at.of[0]) {
    const uint32_t d = depth.offset - at.of[0] * a.axes[0].stride.value;
    for (at.of[1] = height.first; at.of[1] < height.end; ++at.of[1]) {
      const uint32_t h = height.offset - at.of[1] * a.axes[1].stride.value, row = at.of[0] * a.axes[1].y + at.of[1];
      const uint32_t number = (d * a.axes[1].span + h) * a.axes[2].span + width.offset;
      for (at.of[2] = width.first; at.of[2] < width.end; ++at.of[2])
        f(at, row * a.axes[2].y + at.of[2], number - at.of[2] * a.axes[2].stride.value);
    }
  }
}

// Finds the first maximum of each window, or the first NaN if there is one. A window of only padding has -inf, and as
// winner its first tap, which no element is.
template <typename T>
LOCKSTEP_INLINE inline void MaxPool(const PoolArgs& a) {
  const PoolThread thread(a);
  if (thread.image >= a.images) return;
  constexpr int kCount = kLanes<T>;
  const Window window(a, Coordinates(a, thread.place));
  const Channels<T> x(a, a.x, a.x_steps, thread);
  Group<T> largest;
  Pack<uint32_t, kCount> winners;
  LOCKSTEP_UNROLL
  for (int lane = 0; lane < kCount; ++lane) {
    largest.of[lane] = Number<T>::Of(-__builtin_inf());
    winners.of[lane] = window.FirstTap();
  }
  window.ForTaps([&](uint32_t place, uint32_t number) LOCKSTEP_INLINE {
    const Group<T> group = x.Load(place);
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kCount; ++lane) {
      const auto value = Number<T>::OrderedOf(group.of[lane]), kept = Number<T>::OrderedOf(largest.of[lane]);
      const bool wins = !(value <= kept) && kept == kept;
      largest.of[lane] = wins ? group.of[lane] : largest.of[lane];
      winners.of[lane] = wins ? number : winners.of[lane];
    }
  });
  if (a.y != nullptr) Channels<T>(a, a.y, a.y_steps, thread).Store(thread.place, largest);
  if (a.winners != nullptr) Winners<kCount>(a, thread).Store(thread.place, winners);
}

template <typename T>
LOCKSTEP_INLINE inline void MaxPoolGrad(const PoolArgs& a) {
  const PoolThread thread(a);
  if (thread.image >= a.images) return;
  constexpr int kCount = kLanes<T>;
  const Channels<T> dy(a, a.x, a.y_steps, thread);
  const Winners<kCount> winners(a, thread);
  double totals[kCount] = {};
  ForWindows(a, Coordinates(a, thread.place), [&](const Coordinates&, uint32_t place, uint32_t number) LOCKSTEP_INLINE {
    const auto found = winners.Load(place);
    const Group<T> group = dy.Load(place);
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kCount; ++lane) {
      if (found.of[lane] == number) totals[lane] += Number<T>::WideOf(group.of[lane]);
    }
  });
  Channels<T>(a, a.y, a.x_steps, thread).Store(thread.place, Rounded<T>(totals));
}

template <typename T>
LOCKSTEP_INLINE inline void AvgPool(const PoolArgs& a) {
  const PoolThread thread(a);
  if (thread.image >= a.images) return;
  constexpr int kCount = kLanes<T>;
  const Window window(a, Coordinates(a, thread.place));
  const Channels<T> x(a, a.x, a.x_steps, thread);
  double totals[kCount] = {};
  window.ForTaps([&](uint32_t place, uint32_t) LOCKSTEP_INLINE {
    const Group<T> group = x.Load(place);
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kCount; ++lane) totals[lane] += Number<T>::WideOf(group.of[lane]);
  });
  LOCKSTEP_UNROLL
  for (int lane = 0; lane < kCount; ++lane) totals[lane] /= window.divisor();
  Channels<T>(a, a.y, a.y_steps, thread).Store(thread.place, Rounded<T>(totals));
}

// Averages have no dilation, so that each window encloses only what it covers.
template <typename T>
LOCKSTEP_INLINE inline void AvgPoolGrad(const PoolArgs& a) {
  const PoolThread thread(a);
  if (thread.image >= a.images) return;
  constexpr int kCount = kLanes<T>;
  const Channels<T> dy(a, a.x, a.y_steps, thread);
  double totals[kCount] = {};
  ForWindows(a, Coordinates(a, thread.place), [&](const Coordinates& at, uint32_t place, uint32_t) LOCKSTEP_INLINE {
    const double divisor = Window(a, at).divisor();
    const Group<T> group = dy.Load(place);
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kCount; ++lane) totals[lane] += Number<T>::WideOf(group.of[lane]) / divisor;
  });
  Channels<T>(a, a.y, a.x_steps, thread).Store(thread.place, Rounded<T>(totals));
}

#define LOCKSTEP_POOLING_KERNELS(K)                               \
  LOCKSTEP_FLOATS(K, max_pool, PoolArgs, false, MaxPool)          \
  LOCKSTEP_FLOATS(K, max_pool_grad, PoolArgs, false, MaxPoolGrad) \
  LOCKSTEP_FLOATS(K, avg_pool, PoolArgs, false, AvgPool)          \
  LOCKSTEP_FLOATS(K, avg_pool_grad, PoolArgs, false, AvgPoolGrad)
LOCKSTEP_KERNELS(Pooling, LOCKSTEP_POOLING_KERNELS)

}  // namespace lockstep::cuda
