// Attention and its gradients in blocks, with a running softmax and with recomputed scores (Dao, "FlashAttention-2",
// 2023), so that the scores of all queries and keys are never in memory. Sums have a fixed order: the bits depend only
// on the operands.
//
// A block of threads owns kAttentionRows rows: queries, or keys in the kernel of dk and dv. Each warp has 16 of them,
// whose sums stay in its registers. The block visits the other side, the columns, in tiles, in shared memory.
//
// Each dtype has a family of its own, because a program that uses one of them should not wait until the driver has
// compiled all.

#pragma once

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/number.h"
#include "backends/cuda/kernels/thread.h"
#include "backends/cuda/kernels/warp_product.h"

namespace lockstep::cuda {
namespace attention {

static_assert(kAttentionRows == kBlock / kWarp * kProductRows);

constexpr float kInfinity = __builtin_inff(), kLog2E = 1.44269504f, kLn2 = 0.693147181f;

inline int Min(int a, int b) { return a < b ? a : b; }
inline int Max(int a, int b) { return a > b ? a : b; }

// The position of this thread in a product (warp_product.h).
inline int G() { return static_cast<int>(ThreadOfBlock()) % kWarp / 4; }
inline int T4() { return static_cast<int>(ThreadOfBlock()) % 4; }
// The first of its two rows among those of the block; the other is 8 rows later.
inline int RowOfBlock() { return static_cast<int>(ThreadOfBlock()) / kWarp * kProductRows + G(); }
// The column of element j of this thread's part of C number i, and its row: 0 for the first, 1 for the other.
inline int ColumnOf(int i, int j) { return kProductColumns * i + 2 * T4() + j % 2; }
constexpr int HalfOf(int j) { return j / 2; }

// --- Rows in memory --------------------------------------------------------------------------------------------------

template <int kWords>
struct VectorOf;
template <>
struct VectorOf<1> {
  using Type = uint32_t __attribute__((vector_size(4), may_alias));
};
template <>
struct VectorOf<2> {
  using Type = uint32_t __attribute__((vector_size(8), may_alias));
};
template <>
struct VectorOf<4> {
  using Type = uint32_t __attribute__((vector_size(16), may_alias));
};

// The rows of one head.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  int count, size;  // the numbers of rows, and of elements of a row

  LOCKSTEP_INLINE Rows(const void* all, const AttentionRows& at, int64_t head, int row_count, int row_size)
      : data(static_cast<T*>(const_cast<void*>(all)) + head / at.heads * at.batch + head % at.heads * at.head),
        stride(at.row),
        count(row_count),
        size(row_size) {}

  // Reads kWords words of a row from `word` on. Rows, and words after a row, that do not exist are zeros.
  template <int kWords>
  LOCKSTEP_INLINE void Read(int row, int word, uint32_t (&words)[kWords]) const {
    using Vector = typename VectorOf<kWords>::Type;
    const int element = word * Words<T>::kElements;
    Vector read = {};
    if (row < count && element < size) read = *reinterpret_cast<const Vector*>(data + row * stride + element);
    LOCKSTEP_UNROLL
    for (int i = 0; i < kWords; ++i)
      words[i] = Words<T>::kElements == 1 ? Words<float>::Of(BitsAs<float>(read[i])) : read[i];
  }

  // Reads words 2 t and 2 t + 1 of the 8 words of a step, of this thread's two rows, as A. Tile::Along has B in the
  // same order.
  LOCKSTEP_INLINE void ReadA(int row, int step, PartOfA& a) const {
    LOCKSTEP_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t words[2];
      Read(row + 8 * half, kProductWords * step + 2 * T4(), words);
      a[half] = words[0], a[2 + half] = words[1];
    }
  }

  // Writes this thread's part of its two rows, multiplied by a factor for each and rounded.
  template <int kParts>
  LOCKSTEP_INLINE void Write(int row, const PartOfC (&sums)[kParts], float factor0, float factor1) const {
    using Vector = typename VectorOf<2 / Words<T>::kElements>::Type;
    LOCKSTEP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      LOCKSTEP_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int at = row + 8 * half, element = ColumnOf(i, 0);
        const float factor = half == 0 ? factor0 : factor1;
        const float first = sums[i][2 * half] * factor, second = sums[i][2 * half + 1] * factor;
        if (at >= count || element >= size) continue;
        Vector& to = *reinterpret_cast<Vector*>(data + at * stride + element);
        if constexpr (Words<T>::kElements == 1) {
          to = Vector{BitsAs<uint32_t>(first), BitsAs<uint32_t>(second)};
        } else {
          to = Vector{Words<T>::Of(first, second)};
        }
      }
    }
  }
};

// --- Tiles in shared memory ------------------------------------------------------------------------------------------

// kRows rows with room for kSize elements, in one or both of two layouts, in which the threads of a warp read B from
// different banks.
template <typename T, int kRows, int kSize>
struct Tile {
  static constexpr int kElements = Words<T>::kElements;
  // For products along rows: word w of row r is at kStride * r + w.
  struct alignas(16) Along {
    static constexpr int kStride = kSize / kElements + 8;
    uint32_t words[kRows * kStride];
  };
  // For products across rows: element e of row r, together with that of row r + 1 if a word has two elements, is at
  // kStride * (r / kElements) + e.
  struct alignas(16) Across {
    static constexpr int kStride = kSize + (kElements == 2 ? 8 : 4);
    uint32_t words[kRows / kElements * kStride];
  };

  // A thread reads units of kElements rows and kChunk words of each.
  static constexpr int kChunk = 4, kChunks = kSize / kElements / kChunk, kUnits = kRows / kElements * kChunks;
  static constexpr int kUnitsOfThread = kUnits / static_cast<int>(kBlock);
  static_assert(kUnits % kBlock == 0);
  uint32_t words[kUnitsOfThread][kElements][kChunk];

  static int Unit(int i) { return i * static_cast<int>(kBlock) + static_cast<int>(ThreadOfBlock()); }
  static int LineOf(int i) { return Unit(i) / kChunks; }
  static int WordOf(int i) { return Unit(i) % kChunks * kChunk; }

  // Reads this thread's part of the rows from `first` on.
  LOCKSTEP_INLINE void Read(const Rows<T>& rows, int first) {
    LOCKSTEP_UNROLL
    for (int i = 0; i < kUnitsOfThread; ++i) {
      LOCKSTEP_UNROLL
      for (int j = 0; j < kElements; ++j) rows.Read(first + LineOf(i) * kElements + j, WordOf(i), words[i][j]);
    }
  }

  LOCKSTEP_INLINE void Store(Along& tile) const {
    LOCKSTEP_UNROLL
    for (int i = 0; i < kUnitsOfThread; ++i) {
      LOCKSTEP_UNROLL
      for (int j = 0; j < kElements; ++j)
        StoreChunk(tile.words + (LineOf(i) * kElements + j) * Along::kStride + WordOf(i), words[i][j]);
    }
  }

  LOCKSTEP_INLINE void Store(Across& tile) const {
    LOCKSTEP_UNROLL
    for (int i = 0; i < kUnitsOfThread; ++i) {
      uint32_t* const to = tile.words + LineOf(i) * Across::kStride + WordOf(i) * kElements;
      if constexpr (kElements == 1) {
        StoreChunk(to, words[i][0]);
      } else {
        LOCKSTEP_UNROLL
        for (int half = 0; half < 2; ++half) {
          uint32_t pairs[kChunk];
          LOCKSTEP_UNROLL
          for (int j = 0; j < 2; ++j) {
            const uint32_t one = words[i][0][2 * half + j], next = words[i][1][2 * half + j];
            pairs[2 * j] = (one & 0xffff) | next << 16;
            pairs[2 * j + 1] = one >> 16 | (next & 0xffff0000);
          }
          StoreChunk(to + half * kChunk, pairs);
        }
      }
    }
  }

 private:
  static void StoreChunk(uint32_t* to, const uint32_t (&chunk)[kChunk]) {
    using Vector = VectorOf<kChunk>::Type;
    *reinterpret_cast<Vector*>(to) = Vector{chunk[0], chunk[1], chunk[2], chunk[3]};
  }
};

// sums += A times the transposed tile; `a(step, part)` sets the part of A for 8 words.
template <typename T, int kRows, int kSize, typename A>
LOCKSTEP_INLINE inline void MultiplyAlong(const A& a, const typename Tile<T, kRows, kSize>::Along& tile,
                                          PartOfC (&sums)[kRows / kProductColumns]) {
  using Vector = VectorOf<2>::Type;
  LOCKSTEP_UNROLL
  for (int step = 0; step < kSize / Words<T>::kElements / kProductWords; ++step) {
    PartOfA part;
    a(step, part);
    LOCKSTEP_UNROLL
    for (int i = 0; i < kRows / kProductColumns; ++i) {
      const Vector words = *reinterpret_cast<const Vector*>(tile.words + (kProductColumns * i + G()) * tile.kStride +
                                                            kProductWords * step + 2 * T4());
      const PartOfB b = {words[0], words[1]};
      Words<T>::MultiplyAdd(part, b, sums[i]);
    }
  }
}

// sums += a times the tile. `a` is a result of MultiplyAlong, rounded to T.
template <typename T, int kRows, int kSize>
LOCKSTEP_INLINE inline void MultiplyAcross(const PartOfC (&a)[kRows / kProductColumns],
                                           const typename Tile<T, kRows, kSize>::Across& tile,
                                           PartOfC (&sums)[kSize / kProductColumns]) {
  constexpr int kElements = Words<T>::kElements;
  LOCKSTEP_UNROLL
  for (int step = 0; step < kRows / kElements / kProductWords; ++step) {
    // A thread's part of C has the words of A in an order that depends on T. B follows it.
    PartOfA part;
    int lines[2];
    if constexpr (kElements == 1) {
      const PartOfC& x = a[step];
      part[0] = Words<T>::Of(x[0]), part[1] = Words<T>::Of(x[2]);
      part[2] = Words<T>::Of(x[1]), part[3] = Words<T>::Of(x[3]);
      lines[0] = kProductWords * step + 2 * T4(), lines[1] = lines[0] + 1;
    } else {
      const PartOfC &x = a[2 * step], &next = a[2 * step + 1];
      part[0] = Words<T>::Of(x[0], x[1]), part[1] = Words<T>::Of(x[2], x[3]);
      part[2] = Words<T>::Of(next[0], next[1]), part[3] = Words<T>::Of(next[2], next[3]);
      lines[0] = kProductWords * step + T4(), lines[1] = lines[0] + 4;
    }
    LOCKSTEP_UNROLL
    for (int i = 0; i < kSize / kProductColumns; ++i) {
      const int column = kProductColumns * i + G();
      const PartOfB b = {tile.words[lines[0] * tile.kStride + column], tile.words[lines[1] * tile.kStride + column]};
      Words<T>::MultiplyAdd(part, b, sums[i]);
    }
  }
}

// --- Scores ----------------------------------------------------------------------------------------------------------

// The number of keys that a query may see: the first ones.
inline int KeysOf(const AttentionArgs& a, int query) {
  return a.causal != 0 ? Max(0, Min(a.keys, query + a.past + 1)) : a.keys;
}
// The first query that may see a key.
inline int FirstQueryOf(const AttentionArgs& a, int key) { return a.causal != 0 ? Max(0, key - a.past) : 0; }

// A tile of scores of one head, as this thread's part of a product: of queries and keys, or of keys and queries.
template <typename T, bool kOwnsKeys>
struct Scores {
  const AttentionArgs& a;
  int rows, row;     // the block's first row, and the first of the two of this thread
  int64_t mask = 0;  // the first element of the head's mask

  LOCKSTEP_INLINE Scores(const AttentionArgs& args, int block_row)
      : a(args), rows(block_row), row(block_row + RowOfBlock()) {}

  LOCKSTEP_INLINE void SetHead(int64_t head) {
    if (a.mask != nullptr)
      mask = head / a.mask_rows.heads * a.mask_rows.batch + head % a.mask_rows.heads * a.mask_rows.head;
  }

  // Turns products of queries and keys into scores, minus infinity for a key that a query does not see. Multiplies
  // `slopes`, unless that is null, by the derivatives of the softcap.
  template <int kParts>
  LOCKSTEP_INLINE void Of(int first_column, PartOfC (&scores)[kParts], PartOfC* slopes) const {
    LOCKSTEP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      LOCKSTEP_UNROLL
      for (int j = 0; j < 4; ++j) scores[i][j] *= a.scale;
    }
    if (a.softcap > 0) {
      const float factor = 2 * kLog2E / a.softcap;
      LOCKSTEP_UNROLL
      for (int i = 0; i < kParts; ++i) {
        LOCKSTEP_UNROLL
        for (int j = 0; j < 4; ++j) {
          const float tanh = 1 - 2 / (1 + Exp2(factor * scores[i][j]));
          scores[i][j] = a.softcap * tanh;
          if (slopes != nullptr) slopes[i][j] *= 1 - tanh * tanh;
        }
      }
    }
    // All rows of the block see the columns [low, high).
    const int low = kOwnsKeys ? FirstQueryOf(a, rows + kAttentionRows - 1) : 0;
    const int high = kOwnsKeys ? a.queries : KeysOf(a, rows);
    if (a.mask == nullptr && low <= first_column && first_column + kParts * kProductColumns <= high) return;
    LOCKSTEP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      LOCKSTEP_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int own = row + 8 * HalfOf(j), other = first_column + ColumnOf(i, j);
        const int query = kOwnsKeys ? other : own, key = kOwnsKeys ? own : other;
        scores[i][j] = Masked(scores[i][j], query, key);
      }
    }
  }

 private:
  LOCKSTEP_INLINE float Masked(float score, int query, int key) const {
    if (query >= a.queries || key >= KeysOf(a, query)) return -kInfinity;
    if (a.mask == nullptr) return score;
    const int64_t at = mask + query * a.mask_rows.row + key;
    if (a.mask_is_bool != 0) return static_cast<const bool*>(a.mask)[at] ? score : -kInfinity;
    const auto added = static_cast<float>(Number<T>::WideOf(static_cast<const T*>(a.mask)[at]));
    return added == -kInfinity ? added : score + added;
  }
};

// The largest and the sum of the values of the four threads that have parts of a row.
inline float LargestOfRow(float x) {
  LOCKSTEP_UNROLL
  for (int mask = 1; mask <= 2; ++mask) {
    const auto other = BitsAs<float>(ShuffleXor(BitsAs<uint32_t>(x), mask));
    x = other > x ? other : x;
  }
  return x;
}
inline float SumOfRow(float x) {
  LOCKSTEP_UNROLL
  for (int mask = 1; mask <= 2; ++mask) x += BitsAs<float>(ShuffleXor(BitsAs<uint32_t>(x), mask));
  return x;
}

// --- attention -------------------------------------------------------------------------------------------------------

template <typename T, int kSize>
LOCKSTEP_INLINE inline void Attention(const AttentionArgs& given) {
  constexpr int kColumns = kSize * sizeof(T) <= 256 ? 64 : 32, kParts = kColumns / kProductColumns;
  using KeyTile = Tile<T, kColumns, kSize>;
  struct Shared {
    typename KeyTile::Along keys;
    typename KeyTile::Across values;
  };
  LOCKSTEP_SHARED(Shared, shared);
  const AttentionArgs a = given;
  // The last queries see most keys, so their blocks come first.
  const auto block = static_cast<int64_t>(BlockOfGrid());
  const int64_t head = block % a.heads;
  const int first = ((a.queries - 1) / kAttentionRows - static_cast<int>(block / a.heads)) * kAttentionRows;
  const int row = first + RowOfBlock();
  const Rows<T> q(a.q, a.q_rows, head, a.queries, a.size), k(a.k, a.k_rows, head / a.group, a.keys, a.size),
      v(a.v, a.v_rows, head / a.group, a.keys, a.value_size), y(a.y, a.y_rows, head, a.queries, a.value_size);
  Scores<T, false> scores(a, first);
  scores.SetHead(head);

  constexpr int kSteps = kSize / Words<T>::kElements / kProductWords;
  PartOfA queries[kSteps];
  LOCKSTEP_UNROLL
  for (int step = 0; step < kSteps; ++step) q.ReadA(row, step, queries[step]);
  const auto query_words = [&](int step, PartOfA& part) {
    LOCKSTEP_UNROLL
    for (int i = 0; i < 4; ++i) part[i] = queries[step][i];
  };
  PartOfC sums[kSize / kProductColumns] = {};
  float largest[2] = {-kInfinity, -kInfinity}, total[2] = {0, 0};

  const int end = KeysOf(a, Min(first + kAttentionRows, a.queries) - 1);
  KeyTile keys, values;
  keys.Read(k, 0), values.Read(v, 0);
  keys.Store(shared->keys), values.Store(shared->values);
  Barrier();
  for (int begin = 0; begin < end; begin += kColumns) {
    const int next = begin + kColumns;
    if (next < end) keys.Read(k, next), values.Read(v, next);
    PartOfC p[kParts] = {};
    MultiplyAlong<T, kColumns, kSize>(query_words, shared->keys, p);
    scores.Of(begin, p, nullptr);
    LOCKSTEP_UNROLL
    for (int half = 0; half < 2; ++half) {
      float larger = largest[half];
      LOCKSTEP_UNROLL
      for (int i = 0; i < kParts; ++i) {
        LOCKSTEP_UNROLL
        for (int j = 2 * half; j < 2 * half + 2; ++j) larger = p[i][j] > larger ? p[i][j] : larger;
      }
      larger = LargestOfRow(larger);
      // Until a key is seen, the largest score is minus infinity; 0 in its place keeps all exponentials at 0.
      // The lowest finite numbers, which some masks add, would overflow if they were multiplied before the subtraction.
      const float subtracted = larger == -kInfinity ? 0 : larger;
      const float factor = Exp2((largest[half] - subtracted) * kLog2E);
      largest[half] = larger;
      total[half] *= factor;
      LOCKSTEP_UNROLL
      for (int i = 0; i < kSize / kProductColumns; ++i) sums[i][2 * half] *= factor, sums[i][2 * half + 1] *= factor;
      LOCKSTEP_UNROLL
      for (int i = 0; i < kParts; ++i) {
        LOCKSTEP_UNROLL
        for (int j = 2 * half; j < 2 * half + 2; ++j) total[half] += p[i][j] = Exp2((p[i][j] - subtracted) * kLog2E);
      }
    }
    MultiplyAcross<T, kColumns, kSize>(p, shared->values, sums);
    Barrier();
    if (next < end) keys.Store(shared->keys), values.Store(shared->values);
    Barrier();
  }

  float factors[2];
  LOCKSTEP_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = SumOfRow(total[half]);
    factors[half] = sum == 0 ? 0 : 1 / sum;
    const int query = row + 8 * half;
    if (T4() == 0 && query < a.queries)
      a.log_sum_exp[head * a.queries + query] = sum == 0 ? -kInfinity : largest[half] + Log2(sum) * kLn2;
  }
  y.Write(row, sums, factors[0], factors[1]);
}

// --- attention_grad --------------------------------------------------------------------------------------------------

// What the gradients need to know of a query.
struct Statistics {
  float log;  // log_sum_exp; infinity, with which all of P is 0, if the query sees no key
  float delta;
};

LOCKSTEP_INLINE inline Statistics StatisticsOf(const AttentionArgs& a, int64_t head, int query) {
  if (query >= a.queries) return {kInfinity, 0};
  const float log = a.log_sum_exp[head * a.queries + query];
  return {log == -kInfinity ? kInfinity : log, a.delta[head * a.queries + query]};
}

// The gradients of a block's rows. With (rows1, rows2) = (q, dy) and (columns1, columns2) = (k, v), or the other way
// round if the block owns keys, a tile has
//   scores = rows1 columns1^T,  P = exp(scores - log_sum_exp),  dS = P (rows2 columns2^T - delta),
// and adds dS columns1 to the sums for dq or dk, and P columns2 to those for dv.
template <typename T, int kSize, bool kOwnsKeys>
LOCKSTEP_INLINE inline void AttentionGrad(const AttentionArgs& given) {
  constexpr int kColumns = 64 * 128 / (kSize * static_cast<int>(sizeof(T))), kParts = kColumns / kProductColumns;
  using ColumnTile = Tile<T, kColumns, kSize>;
  struct Shared {
    typename ColumnTile::Along along1, along2;
    typename ColumnTile::Across across1, across2;  // across2 and the statistics: if the block owns keys
    Statistics statistics[kColumns];
  };
  LOCKSTEP_SHARED(Shared, shared);
  const AttentionArgs a = given;
  const auto block = static_cast<int64_t>(BlockOfGrid());
  const int64_t row_heads = kOwnsKeys ? a.heads / a.group : a.heads, row_head = block % row_heads;
  const int row_count = kOwnsKeys ? a.keys : a.queries;
  // Blocks with many columns come first: those of the first keys, and of the last queries.
  const int number = static_cast<int>(block / row_heads);
  const int first = (kOwnsKeys ? number : (row_count - 1) / kAttentionRows - number) * kAttentionRows;
  const int row = first + RowOfBlock();
  const auto queries_of = [&](int64_t head) { return Rows<T>(a.q, a.q_rows, head, a.queries, a.size); };
  const auto dys_of = [&](int64_t head) { return Rows<T>(a.dy, a.dy_rows, head, a.queries, a.value_size); };
  const auto keys_of = [&](int64_t head) { return Rows<T>(a.k, a.k_rows, head, a.keys, a.size); };
  const auto values_of = [&](int64_t head) { return Rows<T>(a.v, a.v_rows, head, a.keys, a.value_size); };

  // Rows stay in registers if there is room, else in the first-level cache.
  const Rows<T> rows1 = kOwnsKeys ? keys_of(row_head) : queries_of(row_head);
  const Rows<T> rows2 = kOwnsKeys ? values_of(row_head) : dys_of(row_head);
  constexpr int kSteps = kSize / Words<T>::kElements / kProductWords;
  constexpr bool kKeepsRows = kSize <= 64;
  PartOfA kept1[kKeepsRows ? kSteps : 1], kept2[kKeepsRows ? kSteps : 1];
  if constexpr (kKeepsRows) {
    LOCKSTEP_UNROLL
    for (int step = 0; step < kSteps; ++step) rows1.ReadA(row, step, kept1[step]), rows2.ReadA(row, step, kept2[step]);
  }
  const auto words_of = [&](const Rows<T>& rows, const auto& kept) {
    return [&](int step, PartOfA& part) {
      if constexpr (kKeepsRows) {
        LOCKSTEP_UNROLL
        for (int i = 0; i < 4; ++i) part[i] = kept[step][i];
      } else {
        rows.ReadA(row, step, part);
      }
    };
  };
  Statistics statistics[2];  // of the rows, if they are queries
  if constexpr (!kOwnsKeys) statistics[0] = StatisticsOf(a, row_head, row);
  if constexpr (!kOwnsKeys) statistics[1] = StatisticsOf(a, row_head, row + 8);

  // The tiles are those in which some row sees a column or is seen by it, of each head that shares the rows.
  const int begin = kOwnsKeys ? Min(FirstQueryOf(a, first), a.queries) / kColumns * kColumns : 0;
  const int end = kOwnsKeys ? a.queries : KeysOf(a, Min(first + kAttentionRows, row_count) - 1);
  const int tiles_of_head = (end - begin + kColumns - 1) / kColumns;
  const int tiles = tiles_of_head * (kOwnsKeys ? a.group : 1);
  const auto head_of = [&](int tile) {
    return kOwnsKeys ? row_head * a.group + tile / tiles_of_head : row_head / a.group;
  };
  const auto column_of = [&](int tile) { return begin + (kOwnsKeys ? tile % tiles_of_head : tile) * kColumns; };
  ColumnTile columns1, columns2;
  Statistics of_column = {};
  const auto read = [&](int tile) {
    const int64_t head = head_of(tile);
    const int column = column_of(tile), own = static_cast<int>(ThreadOfBlock());
    columns1.Read(kOwnsKeys ? queries_of(head) : keys_of(head), column);
    columns2.Read(kOwnsKeys ? dys_of(head) : values_of(head), column);
    if (kOwnsKeys && own < kColumns) of_column = StatisticsOf(a, head, column + own);
  };
  const auto store = [&] {
    columns1.Store(shared->along1), columns1.Store(shared->across1), columns2.Store(shared->along2);
    if constexpr (kOwnsKeys) {
      columns2.Store(shared->across2);
      if (ThreadOfBlock() < kColumns) shared->statistics[ThreadOfBlock()] = of_column;
    }
  };

  Scores<T, kOwnsKeys> scores(a, first);
  PartOfC sums1[kSize / kProductColumns] = {}, sums2[kSize / kProductColumns] = {};
  if (tiles > 0) {
    read(0);
    store();
  }
  Barrier();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) read(tile + 1);
    PartOfC p[kParts] = {}, ds[kParts] = {};
    MultiplyAlong<T, kColumns, kSize>(words_of(rows1, kept1), shared->along1, p);
    MultiplyAlong<T, kColumns, kSize>(words_of(rows2, kept2), shared->along2, ds);
    const auto of_query = [&](int i, int j) -> const Statistics& {
      if constexpr (kOwnsKeys) return shared->statistics[ColumnOf(i, j)];
      else return statistics[HalfOf(j)];
    };
    LOCKSTEP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      LOCKSTEP_UNROLL
      for (int j = 0; j < 4; ++j) ds[i][j] -= of_query(i, j).delta;
    }
    scores.SetHead(kOwnsKeys ? head_of(tile) : row_head);
    scores.Of(column_of(tile), p, ds);
    LOCKSTEP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      LOCKSTEP_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float log = of_query(i, j).log;
        const bool hidden = p[i][j] == -kInfinity || log == kInfinity;
        p[i][j] = hidden ? 0 : Exp2((p[i][j] - log) * kLog2E);
        ds[i][j] = hidden ? 0 : p[i][j] * ds[i][j];
      }
    }
    MultiplyAcross<T, kColumns, kSize>(ds, shared->across1, sums1);
    if constexpr (kOwnsKeys) MultiplyAcross<T, kColumns, kSize>(p, shared->across2, sums2);
    Barrier();
    if (tile + 1 < tiles) store();
    Barrier();
  }

  if constexpr (kOwnsKeys) {
    Rows<T>(a.dk, a.dk_rows, row_head, a.keys, a.size).Write(row, sums1, a.scale, a.scale);
    Rows<T>(a.dv, a.dv_rows, row_head, a.keys, a.value_size).Write(row, sums2, 1, 1);
  } else {
    Rows<T>(a.dq, a.dq_rows, row_head, a.queries, a.size).Write(row, sums1, a.scale, a.scale);
  }
}

}  // namespace attention

#define LOCKSTEP_ATTENTION_KERNELS_OF_SIZE(K, dtype, T, size)                                         \
  K(attention_##dtype##_##size, AttentionArgs, true, attention::Attention<T, size>)                   \
  K(attention_grad_q_##dtype##_##size, AttentionArgs, true, attention::AttentionGrad<T, size, false>) \
  K(attention_grad_kv_##dtype##_##size, AttentionArgs, true, attention::AttentionGrad<T, size, true>)
#define LOCKSTEP_ATTENTION_KERNELS(K, dtype, T)       \
  LOCKSTEP_ATTENTION_KERNELS_OF_SIZE(K, dtype, T, 64) \
  LOCKSTEP_ATTENTION_KERNELS_OF_SIZE(K, dtype, T, 128)

}  // namespace lockstep::cuda
