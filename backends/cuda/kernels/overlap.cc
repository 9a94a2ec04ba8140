// Adds overlapping windows: each element of the result adds the windows' values for it, one tap after the other.

#include "backends/cuda/kernels/overlap.h"

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

// Returns the position in [window, positions] of tap `tap` of the window whose tap is at `place`; -1 if there is no
// such window.
inline int64_t Find(const OverlapArgs& a, int64_t tap, const int64_t* place) {
  int64_t position = 0, step = 1, rest = tap;
  bool found = true;
  Downwards<kOverlapDims>([&](int d) LOCKSTEP_INLINE {
    if (d >= a.dims) return;
    const int64_t offset = place[d] - rest % a.window[d] * a.dilation[d], p = offset / a.stride[d];
    rest /= a.window[d];
    found = found && offset >= 0 && offset % a.stride[d] == 0 && p < a.positions[d];
    position += p * step;
    step *= a.positions[d];
  });
  return found ? tap * step + position : -1;
}

template <typename T>
void OverlapAdd(const OverlapArgs& a) {
  int64_t taps = 1, positions = 1, size = 1;
  Downwards<kOverlapDims>([&](int d) LOCKSTEP_INLINE {
    if (d < a.dims) taps *= a.window[d], positions *= a.positions[d], size *= a.size[d];
  });
  const int64_t at = ThreadOfGrid();
  if (at >= a.outer * size * a.inner) return;
  const int64_t j = at % a.inner, block = at / a.inner / size;
  int64_t place[kOverlapDims] = {}, rest = at / a.inner % size;
  Downwards<kOverlapDims>([&](int d) LOCKSTEP_INLINE {
    if (d >= a.dims) return;
    place[d] = rest % a.size[d];
    rest /= a.size[d];
  });
  typename Number<T>::Wide total = 0;
  for (int64_t tap = 0; tap < taps; ++tap) {
    const int64_t from = Find(a, tap, place);
    if (from < 0) continue;
    total += Number<T>::WideOf(static_cast<const T*>(a.x)[(block * taps * positions + from) * a.inner + j]);
  }
  static_cast<T*>(a.y)[at] = Number<T>::Of(total);
}

#define LOCKSTEP_OVERLAP_KERNELS(K) LOCKSTEP_NUMBERS(K, overlap_add, OverlapArgs, false, OverlapAdd)
LOCKSTEP_KERNELS(Overlap, LOCKSTEP_OVERLAP_KERNELS)

}  // namespace lockstep::cuda
