// Sums to which each launch adds one term.

#include "backends/cuda/kernels/sum.h"

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

template <typename T>
void Sum(const SumArgs& a) {
  using Wide = typename Number<T>::Wide;
  const int64_t at = ThreadOfGrid();
  if (at >= a.count) return;
  auto* total = static_cast<Wide*>(a.totals) + at;
  *total = (a.is_first != 0 ? Wide(0) : *total) + Number<T>::WideOf(static_cast<const T*>(a.x)[at]);
  static_cast<T*>(a.y)[at] = Number<T>::Of(*total);
}

#define LOCKSTEP_SUM_KERNELS(K) LOCKSTEP_NUMBERS(K, sum, SumArgs, false, Sum)
LOCKSTEP_KERNELS(Sum, LOCKSTEP_SUM_KERNELS)

}  // namespace lockstep::cuda
