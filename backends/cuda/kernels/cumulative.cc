// Cumulative sums and products. Floats are accumulated in f64 and rounded once. The order of additions depends only on
// the shape.

#include "backends/cuda/kernels/cumulative.h"

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

// A line of x and y.
template <typename T>
struct Line {
  using Wide = typename Number<T>::Wide;
  const CumulativeArgs& a;
  int64_t first;

  Line(const CumulativeArgs& args, int64_t line)
      : a(args), first(line / args.inner * args.extent * args.inner + line % args.inner) {}

  Wide Neutral() const { return a.multiplies != 0 ? Wide(1) : Wide(0); }
  Wide Combine(Wide total, Wide element) const { return a.multiplies != 0 ? total * element : total + element; }
  int64_t At(int64_t i) const { return first + (a.reverse != 0 ? a.extent - 1 - i : i) * a.inner; }
  Wide Element(int64_t i) const { return Number<T>::WideOf(static_cast<const T*>(a.x)[At(i)]); }

  // Writes elements [begin, end); `total` is that of the elements before.
  void Write(int64_t begin, int64_t end, Wide total) const {
    for (int64_t i = begin; i < end; ++i) {
      const Wide before = total;
      total = Combine(total, Element(i));
      static_cast<T*>(a.y)[At(i)] = Number<T>::Of(a.exclusive != 0 ? before : total);
    }
  }
};

template <typename T>
void Cumulative(const CumulativeArgs& a) {
  const int64_t thread = ThreadOfGrid();
  if (thread >= a.outer * a.inner) return;
  const Line<T> line(a, thread);
  line.Write(0, a.extent, line.Neutral());
}

template <typename Wide>
struct Totals {
  Wide of[kBlock];
};

template <typename T>
void CumulativeBlock(const CumulativeArgs& a) {
  using Wide = typename Number<T>::Wide;
  LOCKSTEP_SHARED(Totals<Wide>, totals);
  const Line<T> line(a, BlockOfGrid());
  const int64_t thread = ThreadOfBlock(), length = (a.extent + kBlock - 1) / kBlock;
  const int64_t begin = thread * length < a.extent ? thread * length : a.extent;
  const int64_t end = begin + length < a.extent ? begin + length : a.extent;
  Wide total = line.Neutral();
  for (int64_t i = begin; i < end; ++i) total = line.Combine(total, line.Element(i));
  totals->of[thread] = total;
  Barrier();
  Wide before = line.Neutral();
  for (int64_t i = 0; i < thread; ++i) before = line.Combine(before, totals->of[i]);
  line.Write(begin, end, before);
}

#define LOCKSTEP_CUMULATIVE_KERNELS(K)                               \
  LOCKSTEP_NUMBERS(K, cumulative, CumulativeArgs, false, Cumulative) \
  LOCKSTEP_NUMBERS(K, cumulative_block, CumulativeArgs, true, CumulativeBlock)
LOCKSTEP_KERNELS(Cumulative, LOCKSTEP_CUMULATIVE_KERNELS)

}  // namespace lockstep::cuda
