// Sorting with a bitonic network, the first k elements in sorted order, and argmax.

#include "backends/cuda/kernels/order.h"

#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"

namespace lockstep::cuda {

// --- Sorting ---------------------------------------------------------------------------------------------------------

struct Tile {
  uint64_t keys[kTile];
  uint32_t numbers[kTile];
};

// Sorts entries i and i + distance, in increasing order if `increasing` (see IsIncreasing).
inline void Exchange(uint64_t* keys, uint32_t* numbers, int64_t i, int64_t distance, bool increasing) {
  const int64_t j = i + distance;
  const bool swapped = keys[j] < keys[i] || (keys[j] == keys[i] && numbers[j] < numbers[i]);
  if (swapped != increasing) return;
  const uint64_t key = keys[i];
  keys[i] = keys[j], keys[j] = key;
  const uint32_t number = numbers[i];
  numbers[i] = numbers[j], numbers[j] = number;
}

inline bool IsIncreasing(int64_t at, int64_t padded, int64_t block) { return (at & (padded - 1) & block) == 0; }

// Returns the first entry of pair number `pair` of the pairs whose entries are `distance`, a power of two, apart.
inline int64_t FirstOf(int64_t pair, int64_t distance) {
  const int64_t in_half = pair & (distance - 1);
  return 2 * (pair - in_half) + in_half;
}

// Runs the steps for one size of blocks, from `distance` on, on the `count` entries of the tile that begins at `first`.
inline void TileSteps(Tile& tile, int64_t first, int64_t count, int64_t padded, int64_t block, int64_t distance) {
  for (; distance > 0; distance >>= 1) {
    for (int64_t pair = ThreadOfBlock(); pair < kTile / 2; pair += kBlock) {
      const int64_t i = FirstOf(pair, distance);
      if (i < count) Exchange(tile.keys, tile.numbers, i, distance, IsIncreasing(first + i, padded, block));
    }
    Barrier();
  }
}

// Runs `steps` on a tile that is copied to the block's memory. All conditions before a barrier are the same for all
// threads of the block.
template <typename Steps>
void OnTile(const SortArgs& a, Steps steps) {
  LOCKSTEP_SHARED(Tile, tile);
  const int64_t first = static_cast<int64_t>(BlockOfGrid()) * kTile;
  const int64_t count = a.total - first < kTile ? a.total - first : kTile;
  for (int64_t i = ThreadOfBlock(); i < count; i += kBlock) {
    tile->keys[i] = a.keys[first + i];
    tile->numbers[i] = a.numbers[first + i];
  }
  Barrier();
  steps(*tile, first, count);
  for (int64_t i = ThreadOfBlock(); i < count; i += kBlock) {
    a.keys[first + i] = tile->keys[i];
    a.numbers[first + i] = tile->numbers[i];
  }
}

inline void SortTiles(const SortArgs& a) {
  OnTile(a, [&](Tile& tile, int64_t first, int64_t count) {
    for (int64_t block = 2; block <= a.block; block *= 2) TileSteps(tile, first, count, a.padded, block, block / 2);
  });
}

inline void SortStep(const SortArgs& a) {
  const int64_t i = FirstOf(ThreadOfGrid(), a.distance);
  if (i < a.total) Exchange(a.keys, a.numbers, i, a.distance, IsIncreasing(i, a.padded, a.block));
}

inline void SortTail(const SortArgs& a) {
  OnTile(a, [&](Tile& tile, int64_t first, int64_t count) {
    TileSteps(tile, first, count, a.padded, a.block, kTile / 2);
  });
}

// --- top_k -----------------------------------------------------------------------------------------------------------

// Returns a key that increases with x. NaN is the largest; all NaN are equal, and so are zeros.
template <typename T>
uint64_t KeyOf(T x) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  using Wide = typename Number<T>::Wide;
  const Wide wide = Number<T>::WideOf(x);
  if constexpr (static_cast<Wide>(0.5) != Wide(0)) {
    if (wide != wide) return ~uint64_t{0};
    const auto bits = BitsAs<uint64_t>(wide == 0 ? Wide(0) : wide);
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
  } else {
    return kIsSigned<T> ? wide ^ kSign : wide;
  }
}

// Padding of a line is sorted after all its elements, because its numbers are higher and no key is higher.
template <typename T>
void TopKKeys(const TopKArgs& a) {
  const int64_t at = ThreadOfGrid();
  if (at >= a.outer * a.inner * a.padded) return;
  const int64_t i = at % a.padded, line = at / a.padded;
  uint64_t key = ~uint64_t{0};
  if (i < a.extent) {
    key = KeyOf(static_cast<const T*>(a.x)[(line / a.inner * a.extent + i) * a.inner + line % a.inner]);
    if (a.largest != 0) key = ~key;
  }
  a.keys[at] = key;
  a.numbers[at] = static_cast<uint32_t>(i);
}

template <typename Unit>
void TopKTake(const TopKArgs& a) {
  const int64_t at = ThreadOfGrid();
  if (at >= a.outer * a.k * a.inner) return;
  const int64_t column = at % a.inner, row = at / a.inner, i = row % a.k, block = row / a.k;
  const int64_t from = a.numbers[(block * a.inner + column) * a.padded + i];
  a.indices[at] = from;
  static_cast<Unit*>(a.values)[at] = static_cast<const Unit*>(a.x)[(block * a.extent + from) * a.inner + column];
}

// --- argmax, argmin --------------------------------------------------------------------------------------------------

// Returns true if an element at position i is chosen over one at j.
template <typename T>
bool IsFound(const ArgArgs& a, T at_i, int64_t i, T at_j, int64_t j) {
  const bool i_is_nan = at_i != at_i, j_is_nan = at_j != at_j;
  if (i_is_nan != j_is_nan) return i_is_nan;
  if (!i_is_nan && at_i != at_j) return a.smallest != 0 ? at_i < at_j : at_j < at_i;
  return a.last != 0 ? i > j : i < j;
}

inline void WriteInteger(void* y, int64_t at, int64_t bytes, int64_t value) {
  switch (bytes) {
    case 1: static_cast<uint8_t*>(y)[at] = static_cast<uint8_t>(value); break;
    case 2: static_cast<uint16_t*>(y)[at] = static_cast<uint16_t>(value); break;
    case 4: static_cast<uint32_t*>(y)[at] = static_cast<uint32_t>(value); break;
    default: static_cast<int64_t*>(y)[at] = value;
  }
}

// Positions fit in 32 bits. Threads beyond the last line, or beyond a line's extent, take part in the shuffles with the
// values of others.
template <typename T>
void Arg(const ArgArgs& a) {
  constexpr int kWarp = 32;
  const int64_t lines = a.outer * a.inner, thread = ThreadOfGrid(), lane = thread % kWarp;
  const int64_t own = thread / kWarp, line = own < lines ? own : lines - 1;
  const T* x = static_cast<const T*>(a.x) + line / a.inner * a.extent * a.inner + line % a.inner;
  const auto element = [&](int64_t i) { return Number<T>::OrderedOf(x[i * a.inner]); };
  int64_t best = lane < a.extent ? lane : 0;
  for (int64_t i = lane + kWarp; i < a.extent; i += kWarp) {
    if (IsFound(a, element(i), i, element(best), best)) best = i;
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const int64_t other = ShuffleXor(static_cast<uint32_t>(best), mask);
    if (IsFound(a, element(other), other, element(best), best)) best = other;
  }
  if (lane == 0 && own < lines) WriteInteger(a.y, line, a.bytes, best);
}

#define LOCKSTEP_ORDER_KERNELS(K)                            \
  K(sort_tiles, SortArgs, true, SortTiles)                   \
  K(sort_step, SortArgs, false, SortStep)                    \
  K(sort_tail, SortArgs, true, SortTail)                     \
  LOCKSTEP_NUMBERS(K, top_k_keys, TopKArgs, false, TopKKeys) \
  LOCKSTEP_UNITS(K, top_k_take, TopKArgs, false, TopKTake)   \
  LOCKSTEP_NUMBERS(K, arg, ArgArgs, true, Arg)
LOCKSTEP_KERNELS(Order, LOCKSTEP_ORDER_KERNELS)

}  // namespace lockstep::cuda
