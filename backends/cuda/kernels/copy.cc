// Copies of boxes, and padding. Adjacent threads move adjacent units.

#include "backends/cuda/kernels/copy.h"

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

template <typename Unit>
void Copy(const CopyArgs& a) {
  const int64_t at = ThreadOfGrid();
  if (at >= a.outer * a.middle * a.run) return;
  const int64_t k = at % a.run, row = at / a.run, j = row % a.middle, i = row / a.middle;
  static_cast<Unit*>(a.to)[i * a.to_outer + j * a.to_middle + k] =
      static_cast<const Unit*>(a.from)[i * a.from_outer + j * a.from_middle + k];
}

template <typename Unit>
void Pad(const PadArgs& a) {
  const int64_t at = ThreadOfGrid();
  if (at >= a.total) return;
  int64_t from = 0, step = 1, rest = at;
  bool inside = true;
  Downwards<kPadDims>([&](int d) LOCKSTEP_INLINE {
    if (d >= a.rank) return;
    const int64_t i = rest % a.y_extents[d] - a.low[d];
    rest /= a.y_extents[d];
    inside = inside && i >= 0 && i < a.x_extents[d];
    from += i * step;
    step *= a.x_extents[d];
  });
  const uint64_t value = ByValue(a.value);
  static_cast<Unit*>(a.y)[at] = inside ? static_cast<const Unit*>(a.x)[from] : static_cast<Unit>(value);
}

#define LOCKSTEP_COPY_KERNELS(K)                 \
  LOCKSTEP_UNITS(K, copy, CopyArgs, false, Copy) \
  K(pad_b1, PadArgs, false, Pad<uint8_t>)        \
  K(pad_b2, PadArgs, false, Pad<uint16_t>)       \
  K(pad_b4, PadArgs, false, Pad<uint32_t>)       \
  K(pad_b8, PadArgs, false, Pad<uint64_t>)
LOCKSTEP_KERNELS(Copy, LOCKSTEP_COPY_KERNELS)

}  // namespace lockstep::cuda
