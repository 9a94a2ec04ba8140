// Gather and the scatters. For scatters the indices are first sorted (order.h), by row and then by position, so that
// each element of the result finds its updates and applies them in order: bits do not depend on the order in which
// blocks run.

#include "backends/cuda/kernels/indexing.h"

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

// Returns the row that index `at` points to, or -1 if it is out of range.
inline int64_t RowOf(const void* indices, uint32_t wide, int64_t at, int64_t extent) {
  const int64_t index = wide != 0 ? static_cast<const int64_t*>(indices)[at] : static_cast<const int32_t*>(indices)[at];
  if (index < -extent || index >= extent) return -1;
  return index + (index < 0 ? extent : 0);
}

template <typename Unit>
void Gather(const GatherArgs& a) {
  const Rows& rows = a.rows;
  const int64_t at = ThreadOfGrid();
  if (at >= rows.groups * rows.count * rows.inner) return;
  const int64_t j = at % rows.inner, number = at / rows.inner, i = number % rows.count, group = number / rows.count;
  const int64_t row = RowOf(a.indices, a.wide, group / rows.outer * rows.count + i, rows.extent);
  if (row < 0) return Report(a.error_word, a.error_id);
  static_cast<Unit*>(a.y)[at] = static_cast<const Unit*>(a.x)[(group * rows.extent + row) * rows.inner + j];
}

inline void ScatterKeys(const ScatterKeysArgs& a) {
  const int64_t at = ThreadOfGrid();
  if (at >= a.batches * a.padded) return;
  const int64_t i = at % a.padded, batch = at / a.padded;
  int64_t row = -1;
  if (i < a.count) {
    row = RowOf(a.indices, a.wide, batch * a.count + i, a.extent);
    if (row < 0) Report(a.error_word, a.error_id);
  }
  a.keys[at] = static_cast<uint64_t>(row);
  a.numbers[at] = static_cast<uint32_t>(i);
}

// Returns the position of the first of `count` sorted keys that is not below `key`.
inline int64_t LowerBound(const uint64_t* keys, int64_t count, uint64_t key) {
  int64_t low = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    if (keys[low + half] < key) low += half + 1, count -= half + 1;
    else count = half;
  }
  return low;
}

inline void ScatterBegins(const ScatterBeginsArgs& a) {
  const int64_t at = ThreadOfGrid(), rows = a.extent + 1, batch = at / rows;
  if (batch >= a.batches) return;
  a.begins[at] =
      static_cast<uint32_t>(LowerBound(a.keys + batch * a.padded, a.count, static_cast<uint64_t>(at % rows)));
}

// Calls apply(load(position in the updates)) for each update of element `at` of y, in order. Several are loaded before
// the first of them is applied, so that the many updates of one row do not wait for memory one by one.
template <typename Load, typename Apply>
LOCKSTEP_INLINE inline void ForUpdates(const ScatterArgs& a, int64_t at, Load load, Apply apply) {
  constexpr int kAhead = 8;
  const Rows& rows = a.rows;
  const int64_t j = at % rows.inner, number = at / rows.inner, row = number % rows.extent, group = number / rows.extent;
  const int64_t batch = group / rows.outer, first = batch * a.padded;
  const auto update = [&](int64_t i) LOCKSTEP_INLINE {
    return load((group * rows.count + a.numbers[first + i]) * rows.inner + j);
  };
  if (a.begins != nullptr) {
    const uint32_t* begin = a.begins + batch * (rows.extent + 1) + row;
    const int64_t end = begin[1];
    int64_t i = begin[0];
    for (; i + kAhead <= end; i += kAhead) {
      decltype(update(0)) ahead[kAhead];
      LOCKSTEP_UNROLL
      for (int n = 0; n < kAhead; ++n) ahead[n] = update(i + n);
      LOCKSTEP_UNROLL
      for (int n = 0; n < kAhead; ++n) apply(ahead[n]);
    }
    for (; i < end; ++i) apply(update(i));
    return;
  }
  const auto key = static_cast<uint64_t>(row);
  for (int64_t i = LowerBound(a.keys + first, rows.count, key); i < rows.count && a.keys[first + i] == key; ++i)
    apply(update(i));
}

// Returns true if an update replaces the kept value. NaN stays NaN.
template <typename T>
bool TakesPlace(ScatterKind kind, T kept, T update) {
  return kept == kept && !(kind == ScatterKind::kMin ? kept < update : kept > update);
}

// A thread's elements of y, kCount of them.
template <typename T, int kCount>
LOCKSTEP_INLINE inline void ScatterPack(const ScatterArgs& a) {
  const int64_t at = ThreadOfGrid();
  if (at >= a.rows.groups * a.rows.extent * a.rows.inner) return;
  const auto load = [](const void* from, int64_t i)
                        LOCKSTEP_INLINE { return LoadPack<T, kCount>(static_cast<const T*>(from) + i * kCount); };
  const auto update_at = [&](int64_t from) LOCKSTEP_INLINE { return load(a.updates, from); };
  T* const y = static_cast<T*>(a.y) + at * kCount;
  if (a.kind == ScatterKind::kMin || a.kind == ScatterKind::kMax) {
    Pack<T, kCount> best = load(a.x, at);
    ForUpdates(a, at, update_at, [&](const Pack<T, kCount>& updates) LOCKSTEP_INLINE {
      LOCKSTEP_UNROLL
      for (int lane = 0; lane < kCount; ++lane) {
        const T update = updates.of[lane], kept = best.of[lane];
        best.of[lane] = TakesPlace(a.kind, Number<T>::OrderedOf(kept), Number<T>::OrderedOf(update)) ? update : kept;
      }
    });
    return StorePack(y, best);
  }
  using Wide = typename Number<T>::Wide;
  Wide totals[kCount] = {};
  if (a.x != nullptr) {
    const Pack<T, kCount> x = load(a.x, at);
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kCount; ++lane) totals[lane] = Number<T>::WideOf(x.of[lane]);
  }
  ForUpdates(a, at, update_at, [&](const Pack<T, kCount>& updates) LOCKSTEP_INLINE {
    LOCKSTEP_UNROLL
    for (int lane = 0; lane < kCount; ++lane) {
      const Wide update = Number<T>::WideOf(updates.of[lane]);
      totals[lane] = a.kind == ScatterKind::kProd ? totals[lane] * update : totals[lane] + update;
    }
  });
  Pack<T, kCount> result;
  LOCKSTEP_UNROLL
  for (int lane = 0; lane < kCount; ++lane) result.of[lane] = Number<T>::Of(totals[lane]);
  StorePack(y, result);
}

template <typename T>
LOCKSTEP_INLINE inline void Scatter(const ScatterArgs& a) {
  if (a.is_packed != 0) ScatterPack<T, kLanes<T>>(a);
  else ScatterPack<T, 1>(a);
}

template <typename Unit>
void Replace(const ScatterArgs& a) {
  const int64_t at = ThreadOfGrid();
  if (at >= a.rows.groups * a.rows.extent * a.rows.inner) return;
  const Unit* from = static_cast<const Unit*>(a.x) + at;
  ForUpdates(
      a, at, [&](int64_t update) { return static_cast<const Unit*>(a.updates) + update; },
      [&](const Unit* update) { from = update; });
  static_cast<Unit*>(a.y)[at] = *from;
}

#define LOCKSTEP_INDEXING_KERNELS(K)                         \
  LOCKSTEP_UNITS(K, gather, GatherArgs, false, Gather)       \
  K(scatter_keys, ScatterKeysArgs, false, ScatterKeys)       \
  K(scatter_begins, ScatterBeginsArgs, false, ScatterBegins) \
  LOCKSTEP_NUMBERS(K, scatter, ScatterArgs, false, Scatter)  \
  LOCKSTEP_UNITS(K, replace, ScatterArgs, false, Replace)
LOCKSTEP_KERNELS(Indexing, LOCKSTEP_INDEXING_KERNELS)

}  // namespace lockstep::cuda
