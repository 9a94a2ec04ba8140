// Attention and its gradients in blocks, with a running softmax and with recomputed scores (Dao, "FlashAttention-2",
// 2023), so that the scores of all queries and keys are never in memory. Sums have a fixed order: the bits depend only
// on the operands.
//
// A block of threads owns some rows: queries, or keys in the kernel of dk and dv. Each warp has 16 of them, whose sums
// stay in its registers. The block visits the other side, the columns, in tiles, in shared memory. While it computes
// with one tile, the next one is copied.
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

constexpr float kInfinity = __builtin_inff(), kLog2E = 1.44269504f, kLn2 = 0.693147181f;

inline int Min(int a, int b) { return a < b ? a : b; }
inline int Max(int a, int b) { return a > b ? a : b; }

// The number of this thread in its warp, and its position in a product (warp_product.h).
inline int Lane() { return static_cast<int>(ThreadOfBlock()) % kWarp; }
inline int G() { return Lane() / 4; }
inline int T4() { return Lane() % 4; }
// The first row of this warp among those of the block. This thread has row G() of the warp and the row 8 later.
inline int RowOfWarp() { return static_cast<int>(ThreadOfBlock()) / kWarp * kProductRows; }
// The column of element j of this thread's part of C number i, and its row: 0 for the first, 1 for the other.
inline int ColumnOf(int i, int j) { return kProductColumns * i + 2 * T4() + j % 2; }
constexpr int HalfOf(int j) { return j / 2; }

// --- Rows in memory --------------------------------------------------------------------------------------------------

using Word = uint32_t __attribute__((may_alias));
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

// The first element of a head. The numbers of heads are at most that of a grid's blocks, which have 32 bits.
LOCKSTEP_INLINE inline int64_t HeadOffset(const AttentionRows& at, uint32_t head) {
  const auto heads = static_cast<uint32_t>(at.heads);
  return head / heads * at.batch + head % heads * at.head;
}

// The rows of one head.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  int count, size;  // the numbers of rows, and of elements of a row

  LOCKSTEP_INLINE Rows(const void* all, const AttentionRows& at, uint32_t head, int row_count, int row_size)
      : data(static_cast<T*>(const_cast<void*>(all)) + HeadOffset(at, head)),
        stride(at.row),
        count(row_count),
        size(row_size) {}

  // Reads this thread's part of the 8 words of a step of its two rows, as A.
  LOCKSTEP_INLINE void ReadA(int row, int step, PartOfA& a) const {
    LOCKSTEP_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int at = row + i % 2 * 8, element = (kProductWords * step + i / 2 * 4 + T4()) * Words<T>::kElements;
      uint32_t word = 0;
      if (at < count && element < size) word = *reinterpret_cast<const Word*>(data + at * stride + element);
      a[i] = Words<T>::Rounded(word);
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

constexpr int kTileBytes = 8192, kChunkBytes = 16;

// Rows with room for kSize elements. Chunks of 16 bytes are permuted in each row, so that the same chunk of 8
// successive rows is in different banks.
template <typename T, int kSize>
struct Tile {
  static constexpr int kRowBytes = kSize * static_cast<int>(sizeof(T)), kRows = kTileBytes / kRowBytes;
  static constexpr int kChunks = kRowBytes / kChunkBytes;
  static_assert(kChunks >= 8);

  // Where a chunk of a row is. Position(r, c ^ d) is Position(r, c) ^ d * kChunkBytes, and rows that are a multiple of
  // 8 apart differ by the bytes of that number of rows.
  static constexpr uint32_t Position(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowBytes + (chunk ^ row % 8) * kChunkBytes);
  }

  // What a thread copies of each tile: one chunk of every kStep-th row.
  template <int kThreads>
  class Part {
   public:
    // Rows, and elements after a row, that do not exist are zeros.
    LOCKSTEP_INLINE Part(const Rows<T>& rows, int first) : stride_(rows.stride) {
      constexpr int kElements = kChunkBytes / static_cast<int>(sizeof(T));
      from_ = rows.data + (first + Row()) * rows.stride + Chunk() * kElements;
      left_ = Chunk() * kElements < rows.size ? rows.count - first - Row() : 0;
    }

    // Starts to copy the rows of one tile, the first time from `first` on.
    LOCKSTEP_INLINE void CopyNext(SharedAddress tile) {
      LOCKSTEP_UNROLL
      for (int i = 0; i < kCount; ++i) CopyLater(tile + Place(i), from_ + i * kStep * stride_, i * kStep < left_);
      from_ += kRows * stride_;
      left_ -= kRows;
    }

    // Rounds the words that this thread has copied.
    LOCKSTEP_INLINE static void Round(SharedAddress tile) {
      if constexpr (Words<T>::kElements == 1) {
        LOCKSTEP_UNROLL
        for (int i = 0; i < kCount; ++i) {
          SharedChunk words = LoadChunk(tile + Place(i));
          LOCKSTEP_UNROLL
          for (int j = 0; j < 4; ++j) words[j] = Words<T>::Rounded(words[j]);
          StoreChunk(tile + Place(i), words);
        }
      }
    }

   private:
    static constexpr int kStep = kThreads / kChunks, kCount = kRows / kStep;

    static int Row() { return static_cast<int>(ThreadOfBlock()) / kChunks; }
    static int Chunk() { return static_cast<int>(ThreadOfBlock()) % kChunks; }
    static uint32_t Place(int i) { return Position(Row() + i * kStep, Chunk()); }

    const T* from_;
    int64_t stride_;
    int left_;  // the number of rows from this thread's on
  };

  // sums += A times the transposed rows of the tile from an address on; `a(step, part)` sets the part of A for 8 words.
  template <int kParts, typename A>
  LOCKSTEP_INLINE static void MultiplyAlong(const A& a, SharedAddress rows, PartOfC (&sums)[kParts]) {
    // The matrices are both halves of the words of 8 rows, then those of the next 8 rows.
    const uint32_t own = Position(Lane() % 8 + Lane() / 16 * 8, Lane() / 8 % 2);
    LOCKSTEP_UNROLL
    for (int step = 0; step < kChunks / 2; ++step) {
      PartOfA part;
      a(step, part);
      LOCKSTEP_UNROLL
      for (int i = 0; i < kParts; i += 2) {
        PartsOfMatrices words;
        LoadMatrices(rows + (own ^ 2 * step * kChunkBytes) + i * kProductColumns * kRowBytes, words);
        const PartOfB b = {words[0], words[1]}, next = {words[2], words[3]};
        Words<T>::MultiplyAdd(part, b, sums[i]);
        Words<T>::MultiplyAdd(part, next, sums[i + 1]);
      }
    }
  }

  // sums += a times the rows of the tile from an address on. `a` is a result of MultiplyAlong, rounded to T.
  template <int kParts>
  LOCKSTEP_INLINE static void MultiplyAcross(const PartOfC (&a)[kParts], SharedAddress rows,
                                             PartOfC (&sums)[kSize / kProductColumns]) {
    constexpr int kElements = Words<T>::kElements;
    LOCKSTEP_UNROLL
    for (int step = 0; step < kParts / kElements; ++step) {
      // A thread's part of C has the words of A in an order that depends on T. B follows it.
      const SharedAddress from = rows + step * kProductWords * kElements * kRowBytes;
      PartOfA part;
      if constexpr (kElements == 1) {
        const PartOfC& x = a[step];
        part[0] = Words<T>::Of(x[0]), part[1] = Words<T>::Of(x[2]);
        part[2] = Words<T>::Of(x[1]), part[3] = Words<T>::Of(x[3]);
        const uint32_t first = Position(2 * T4(), G() / 4) + G() % 4 * 4,
                       second = Position(2 * T4() + 1, G() / 4) + G() % 4 * 4;
        LOCKSTEP_UNROLL
        for (int i = 0; i < kSize / kProductColumns; ++i) {
          const uint32_t chunks = 2 * i * kChunkBytes;
          const PartOfB b = {LoadWord(from + (first ^ chunks)), LoadWord(from + (second ^ chunks))};
          Words<T>::MultiplyAdd(part, b, sums[i]);
        }
      } else {
        const PartOfC &x = a[2 * step], &next = a[2 * step + 1];
        part[0] = Words<T>::Of(x[0], x[1]), part[1] = Words<T>::Of(x[2], x[3]);
        part[2] = Words<T>::Of(next[0], next[1]), part[3] = Words<T>::Of(next[2], next[3]);
        // The matrices are a chunk of 8 rows and of the next 8 rows, then the next chunk of both.
        const uint32_t own = Position(Lane() % 16, Lane() / 16);
        LOCKSTEP_UNROLL
        for (int i = 0; i < kSize / kProductColumns; i += 2) {
          PartsOfMatrices words;
          LoadTransposed(from + (own ^ i * kChunkBytes), words);
          const PartOfB b = {words[0], words[1]}, b_of_next = {words[2], words[3]};
          Words<T>::MultiplyAdd(part, b, sums[i]);
          Words<T>::MultiplyAdd(part, b_of_next, sums[i + 1]);
        }
      }
    }
  }
};

// Two stages of two tiles each.
struct alignas(128) Stages {
  uint8_t bytes[2][2][kTileBytes];
};

// --- Scores ----------------------------------------------------------------------------------------------------------

// The number of keys that a query may see: the first ones.
inline int KeysOf(const AttentionArgs& a, int query) {
  return a.causal != 0 ? Max(0, Min(a.keys, query + a.past + 1)) : a.keys;
}
// The first query that may see a key.
inline int FirstQueryOf(const AttentionArgs& a, int key) { return a.causal != 0 ? Max(0, key - a.past) : 0; }

// Scores of this warp's rows and some columns of one head, as this thread's part of a product: of queries and keys, or
// of keys and queries.
template <typename T, bool kOwnsKeys>
struct Scores {
  const AttentionArgs& a;
  int row;           // the first of the two of this thread
  int begin, end;    // some row sees the columns [begin, end)
  int low, high;     // all rows that exist see the columns [low, high)
  bool plain;        // scores are multiplied by a positive number, and not changed otherwise
  float unit;        // their logarithm of base 2
  int64_t mask = 0;  // the first element of the head's mask

  LOCKSTEP_INLINE Scores(const AttentionArgs& args, int first) : a(args), row(first + G()) {
    const int last = first + kProductRows - 1;
    if constexpr (kOwnsKeys) {
      begin = first < a.keys ? FirstQueryOf(a, first) : a.queries, low = FirstQueryOf(a, last), end = high = a.queries;
    } else {
      begin = low = 0, end = first < a.queries ? KeysOf(a, Min(last, a.queries - 1)) : 0, high = KeysOf(a, first);
    }
    plain = a.mask == nullptr && !(a.softcap > 0) && a.scale > 0 && a.scale < 1e30f;
    unit = plain ? a.scale * kLog2E : kLog2E;
  }

  LOCKSTEP_INLINE void SetHead(uint32_t head) {
    if (a.mask != nullptr) mask = HeadOffset(a.mask_rows, head);
  }

  // True if some row sees one of the columns.
  LOCKSTEP_INLINE bool See(int first_column, int count) const {
    return begin < first_column + count && first_column < end;
  }

  // Turns products of queries and keys into scores, in units of `unit` binary digits: minus infinity for a key that a
  // query does not see. Multiplies `slopes`, unless that is null, by the derivatives of the scores, except `scale`.
  template <bool kPlain, int kParts>
  LOCKSTEP_INLINE void Of(int first_column, PartOfC (&scores)[kParts], PartOfC* slopes) const {
    if constexpr (!kPlain) Scale(scores, slopes);
    if ((kPlain || a.mask == nullptr) && low <= first_column && first_column + kParts * kProductColumns <= high) return;
    int from[2], to[2];  // the columns that each row sees
    LOCKSTEP_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int own = row + 8 * half;
      from[half] = kOwnsKeys ? FirstQueryOf(a, own) : 0;
      to[half] = own >= (kOwnsKeys ? a.keys : a.queries) ? 0 : kOwnsKeys ? a.queries : KeysOf(a, own);
    }
    LOCKSTEP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      LOCKSTEP_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int own = row + 8 * HalfOf(j), other = first_column + ColumnOf(i, j);
        if (other < from[HalfOf(j)] || other >= to[HalfOf(j)]) scores[i][j] = -kInfinity;
        else if (!kPlain && a.mask != nullptr)
          scores[i][j] = Masked(scores[i][j], kOwnsKeys ? other : own, kOwnsKeys ? own : other);
        if (slopes != nullptr && scores[i][j] == -kInfinity) slopes[i][j] = 0;
      }
    }
  }

  // Calls f with `plain`: a loop without masks and softcap needs fewer registers.
  template <typename F>
  LOCKSTEP_INLINE void ByKind(const F& f) const {
    if (plain) f.template operator()<true>();
    else f.template operator()<false>();
  }

  // exp(score - other), where `other` is another score, with `unit`, or a logarithm, with kLog2E.
  // The lowest finite numbers, which some masks add, would overflow if they were multiplied before the subtraction.
  template <bool kPlain>
  LOCKSTEP_INLINE float Exponential(float score, float other, float unit_of_other) const {
    return Exp2(kPlain ? MultiplyAdd(score, unit, -other * unit_of_other) : (score - other) * kLog2E);
  }

 private:
  template <int kParts>
  LOCKSTEP_INLINE void Scale(PartOfC (&scores)[kParts], PartOfC* slopes) const {
    LOCKSTEP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      LOCKSTEP_UNROLL
      for (int j = 0; j < 4; ++j) scores[i][j] *= a.scale;
    }
    if (!(a.softcap > 0)) return;
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

  LOCKSTEP_INLINE float Masked(float score, int query, int key) const {
    const int64_t at = mask + query * a.mask_rows.row + key;
    if (a.mask_is_bool != 0) return static_cast<const bool*>(a.mask)[at] ? score : -kInfinity;
    const auto added = static_cast<float>(Number<T>::WideOf(static_cast<const T*>(a.mask)[at]));
    return added == -kInfinity ? added : score + added;
  }
};

// The largest and the sum of the values of the four threads that have parts of a row.
inline float LargestOfRow(float x) {
  LOCKSTEP_UNROLL
  for (int mask = 1; mask <= 2; ++mask) x = Larger(x, BitsAs<float>(ShuffleXor(BitsAs<uint32_t>(x), mask)));
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
  constexpr AttentionBlock kShape = AttentionBlockOf(AttentionKernel::kForward, sizeof(T), kSize);
  using OneTile = Tile<T, kSize>;
  constexpr int kColumns = OneTile::kRows, kParts = kColumns / kProductColumns, kRows = kShape.rows();
  LOCKSTEP_SHARED(Stages, stages);
  const AttentionArgs a = given;
  // The last queries see most keys, so their blocks come first.
  const auto heads = static_cast<uint32_t>(a.heads), group = static_cast<uint32_t>(a.group);
  const uint32_t head = BlockOfGrid() % heads;
  const int first = ((a.queries - 1) / kRows - static_cast<int>(BlockOfGrid() / heads)) * kRows;
  const int row = first + RowOfWarp() + G();
  const Rows<T> q(a.q, a.q_rows, head, a.queries, a.size), k(a.k, a.k_rows, head / group, a.keys, a.size),
      v(a.v, a.v_rows, head / group, a.keys, a.value_size);
  Scores<T, false> scores(a, first + RowOfWarp());
  scores.SetHead(head);

  const int end = KeysOf(a, Min(first + kRows, a.queries) - 1);
  SharedAddress tiles = AddressOf(stages), next_tiles = tiles + 2 * kTileBytes;
  using Part = typename OneTile::template Part<kShape.threads>;
  Part keys(k, 0), values(v, 0);
  const auto copy_next = [&](SharedAddress to) LOCKSTEP_INLINE { keys.CopyNext(to), values.CopyNext(to + kTileBytes); };
  if (end > 0) copy_next(tiles);
  PartOfA queries[OneTile::kChunks / 2];
  LOCKSTEP_UNROLL
  for (int step = 0; step < OneTile::kChunks / 2; ++step) q.ReadA(row, step, queries[step]);
  const auto query_words = [&](int step, PartOfA& part) LOCKSTEP_INLINE {
    LOCKSTEP_UNROLL
    for (int i = 0; i < 4; ++i) part[i] = queries[step][i];
  };
  PartOfC sums[kSize / kProductColumns] = {};
  float largest[2] = {-kInfinity, -kInfinity}, total[2] = {0, 0};

  scores.ByKind([&]<bool kPlain>() LOCKSTEP_INLINE {
    for (int column = 0; column < end; column += kColumns) {
      WaitForCopies();
      Part::Round(tiles), Part::Round(tiles + kTileBytes);
      Barrier();
      if (column + kColumns < end) copy_next(next_tiles);
      if (scores.See(column, kColumns)) {
        PartOfC p[kParts] = {};
        OneTile::MultiplyAlong(query_words, tiles, p);
        scores.template Of<kPlain>(column, p, nullptr);
        LOCKSTEP_UNROLL
        for (int half = 0; half < 2; ++half) {
          float larger = largest[half];
          LOCKSTEP_UNROLL
          for (int i = 0; i < kParts; ++i) larger = Larger(larger, Larger(p[i][2 * half], p[i][2 * half + 1]));
          larger = LargestOfRow(larger);
          // Until a key is seen, the largest score is minus infinity; 0 in its place keeps all exponentials at 0.
          const float subtracted = larger == -kInfinity ? 0 : larger;
          const float factor = scores.template Exponential<kPlain>(largest[half], subtracted, scores.unit);
          largest[half] = larger;
          total[half] *= factor;
          LOCKSTEP_UNROLL
          for (int i = 0; i < kSize / kProductColumns; ++i)
            sums[i][2 * half] *= factor, sums[i][2 * half + 1] *= factor;
          LOCKSTEP_UNROLL
          for (int i = 0; i < kParts; ++i) {
            LOCKSTEP_UNROLL
            for (int j = 2 * half; j < 2 * half + 2; ++j)
              total[half] += p[i][j] = scores.template Exponential<kPlain>(p[i][j], subtracted, scores.unit);
          }
        }
        OneTile::MultiplyAcross(p, tiles + kTileBytes, sums);
      }
      const SharedAddress done = tiles;
      tiles = next_tiles, next_tiles = done;
    }
  });

  float factors[2];
  LOCKSTEP_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = SumOfRow(total[half]);
    factors[half] = sum == 0 ? 0 : 1 / sum;
    const int query = row + 8 * half;
    if (T4() == 0 && query < a.queries) {
      const float score = scores.plain ? largest[half] * a.scale : largest[half];
      a.log_sum_exp[int64_t{head} * a.queries + query] = sum == 0 ? -kInfinity : score + Log2(sum) * kLn2;
    }
  }
  Rows<T>(a.y, a.y_rows, head, a.queries, a.value_size).Write(row, sums, factors[0], factors[1]);
}

// --- attention_grad --------------------------------------------------------------------------------------------------

// What the gradients need to know of a query.
struct Statistics {
  float log;  // log_sum_exp; infinity, with which all of P is 0, if the query sees no key
  float delta;
};

LOCKSTEP_INLINE inline Statistics StatisticsOf(const AttentionArgs& a, uint32_t head, int query) {
  if (query >= a.queries) return {kInfinity, 0};
  const int64_t at = int64_t{head} * a.queries + query;
  const float log = a.log_sum_exp[at];
  return {log == -kInfinity ? kInfinity : log, a.delta[at]};
}

// The gradients of a block's rows. With (rows1, rows2) = (q, dy) and (columns1, columns2) = (k, v), or the other way
// round if the block owns keys, a tile has
//   scores = rows1 columns1^T,  P = exp(scores - log_sum_exp),  dS = P (rows2 columns2^T - delta),
// and adds dS columns1 to the sums for dq or dk, and P columns2 to those for dv.
template <typename T, int kSize, bool kOwnsKeys>
LOCKSTEP_INLINE inline void AttentionGrad(const AttentionArgs& given) {
  constexpr AttentionBlock kShape =
      AttentionBlockOf(kOwnsKeys ? AttentionKernel::kGradKV : AttentionKernel::kGradQ, sizeof(T), kSize);
  using OneTile = Tile<T, kSize>;
  constexpr int kColumns = OneTile::kRows, kRows = kShape.rows(), kThreads = kShape.threads;
  constexpr int kAtOnce = kColumns < 32 ? kColumns : 32;  // the columns whose scores are in registers
  constexpr int kParts = kAtOnce / kProductColumns;
  struct Shared {
    Stages stages;
    Statistics statistics[2][kColumns];  // of the queries of each stage, if the block owns keys
  };
  LOCKSTEP_SHARED(Shared, shared);
  const AttentionArgs a = given;
  const auto heads = static_cast<uint32_t>(a.heads), group = static_cast<uint32_t>(a.group);
  const uint32_t row_heads = kOwnsKeys ? heads / group : heads, row_head = BlockOfGrid() % row_heads;
  const int row_count = kOwnsKeys ? a.keys : a.queries;
  // Blocks with many columns come first: those of the first keys, and of the last queries.
  const int number = static_cast<int>(BlockOfGrid() / row_heads);
  const int first = (kOwnsKeys ? number : (row_count - 1) / kRows - number) * kRows;
  const int row = first + RowOfWarp() + G();

  // The tiles are those in which some row sees a column or is seen by it, of each head that shares the rows.
  const int begin = kOwnsKeys ? Min(FirstQueryOf(a, first), a.queries) / kColumns * kColumns : 0;
  const int end = kOwnsKeys ? a.queries : KeysOf(a, Min(first + kRows, row_count) - 1);
  const int own = static_cast<int>(ThreadOfBlock());
  Statistics of_column = {};
  using Part = typename OneTile::template Part<kThreads>;
  const auto first_part = [&](uint32_t head) LOCKSTEP_INLINE {
    return Part(
        kOwnsKeys ? Rows<T>(a.q, a.q_rows, head, a.queries, a.size) : Rows<T>(a.k, a.k_rows, head, a.keys, a.size),
        begin);
  };
  const auto second_part = [&](uint32_t head) LOCKSTEP_INLINE {
    return Part(kOwnsKeys ? Rows<T>(a.dy, a.dy_rows, head, a.queries, a.value_size)
                          : Rows<T>(a.v, a.v_rows, head, a.keys, a.value_size),
                begin);
  };
  uint32_t head = kOwnsKeys ? row_head * group : row_head / group;
  const uint32_t last_head = kOwnsKeys ? head + group - 1 : head;
  Part columns1 = first_part(head), columns2 = second_part(head);
  const auto copy_next = [&](uint32_t head_of_column, int column, SharedAddress to) LOCKSTEP_INLINE {
    columns1.CopyNext(to), columns2.CopyNext(to + kTileBytes);
    if (kOwnsKeys && own < kColumns) of_column = StatisticsOf(a, head_of_column, column + own);
  };
  const SharedAddress stages = AddressOf(&shared->stages);
  if (begin < end) copy_next(head, begin, stages);

  // Rows stay in registers if there is room, else in the first-level cache.
  const Rows<T> rows1 = kOwnsKeys ? Rows<T>(a.k, a.k_rows, row_head, a.keys, a.size)
                                  : Rows<T>(a.q, a.q_rows, row_head, a.queries, a.size);
  const Rows<T> rows2 = kOwnsKeys ? Rows<T>(a.v, a.v_rows, row_head, a.keys, a.value_size)
                                  : Rows<T>(a.dy, a.dy_rows, row_head, a.queries, a.value_size);
  constexpr int kSteps = OneTile::kChunks / 2;
  constexpr bool kKeepsRows = kSize <= 64;
  PartOfA kept1[kKeepsRows ? kSteps : 1], kept2[kKeepsRows ? kSteps : 1];
  if constexpr (kKeepsRows) {
    LOCKSTEP_UNROLL
    for (int step = 0; step < kSteps; ++step) rows1.ReadA(row, step, kept1[step]), rows2.ReadA(row, step, kept2[step]);
  }
  const auto words_of = [&](const Rows<T>& rows, const auto& kept) LOCKSTEP_INLINE {
    return [&](int step, PartOfA& part) LOCKSTEP_INLINE {
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

  Scores<T, kOwnsKeys> scores(a, first + RowOfWarp());
  PartOfC sums1[kSize / kProductColumns] = {}, sums2[kSize / kProductColumns] = {};
  int column = begin, stage = 0;
  scores.ByKind([&]<bool kPlain>() LOCKSTEP_INLINE {
    while (column < end) {
      const SharedAddress tile1 = stages + stage * 2 * kTileBytes, tile2 = tile1 + kTileBytes;
      WaitForCopies();
      Part::Round(tile1), Part::Round(tile2);
      if (kOwnsKeys && own < kColumns) shared->statistics[stage][own] = of_column;
      Barrier();
      uint32_t next_head = head;
      int next_column = column + kColumns;
      if (next_column >= end && head < last_head) {
        ++next_head, next_column = begin;
        columns1 = first_part(next_head), columns2 = second_part(next_head);
      }
      if (next_column < end) copy_next(next_head, next_column, stages + (1 - stage) * 2 * kTileBytes);
      scores.SetHead(kOwnsKeys ? head : row_head);
      LOCKSTEP_NO_UNROLL
      for (int part = 0; part < kColumns; part += kAtOnce) {
        if (!scores.See(column + part, kAtOnce)) continue;
        const uint32_t skipped = part * OneTile::kRowBytes;
        PartOfC p[kParts] = {}, ds[kParts] = {};
        OneTile::MultiplyAlong(words_of(rows1, kept1), tile1 + skipped, p);
        OneTile::MultiplyAlong(words_of(rows2, kept2), tile2 + skipped, ds);
        const auto of_query = [&](int i, int j) LOCKSTEP_INLINE -> const Statistics& {
          if constexpr (kOwnsKeys) return shared->statistics[stage][part + ColumnOf(i, j)];
          else return statistics[HalfOf(j)];
        };
        LOCKSTEP_UNROLL
        for (int i = 0; i < kParts; ++i) {
          LOCKSTEP_UNROLL
          for (int j = 0; j < 4; ++j) ds[i][j] -= of_query(i, j).delta;
        }
        scores.template Of<kPlain>(column + part, p, ds);
        LOCKSTEP_UNROLL
        for (int i = 0; i < kParts; ++i) {
          LOCKSTEP_UNROLL
          for (int j = 0; j < 4; ++j) {
            p[i][j] = scores.template Exponential<kPlain>(p[i][j], of_query(i, j).log, kLog2E);
            ds[i][j] *= p[i][j];
          }
        }
        OneTile::MultiplyAcross(ds, tile1 + skipped, sums1);
        if constexpr (kOwnsKeys) OneTile::MultiplyAcross(p, tile2 + skipped, sums2);
      }
      head = next_head, column = next_column, stage = 1 - stage;
    }
  });

  if constexpr (kOwnsKeys) {
    Rows<T>(a.dk, a.dk_rows, row_head, a.keys, a.size).Write(row, sums1, a.scale, a.scale);
    Rows<T>(a.dv, a.dv_rows, row_head, a.keys, a.value_size).Write(row, sums2, 1, 1);
  } else {
    Rows<T>(a.dq, a.dq_rows, row_head, a.queries, a.size).Write(row, sums1, a.scale, a.scale);
  }
}

}  // namespace attention

#define LOCKSTEP_TOGETHER(kernel, T, size)                                     \
  Together(AttentionBlockOf(AttentionKernel::kernel, sizeof(T), size).threads, \
           AttentionBlockOf(AttentionKernel::kernel, sizeof(T), size).at_once)
#define LOCKSTEP_ATTENTION_KERNELS_OF_SIZE(K, dtype, T, size)                                                       \
  K(attention_##dtype##_##size, AttentionArgs, LOCKSTEP_TOGETHER(kForward, T, size), attention::Attention<T, size>) \
  K(attention_grad_q_##dtype##_##size, AttentionArgs, LOCKSTEP_TOGETHER(kGradQ, T, size),                           \
    attention::AttentionGrad<T, size, false>)                                                                       \
  K(attention_grad_kv_##dtype##_##size, AttentionArgs, LOCKSTEP_TOGETHER(kGradKV, T, size),                         \
    attention::AttentionGrad<T, size, true>)
#define LOCKSTEP_ATTENTION_KERNELS(K, dtype, T)       \
  LOCKSTEP_ATTENTION_KERNELS_OF_SIZE(K, dtype, T, 64) \
  LOCKSTEP_ATTENTION_KERNELS_OF_SIZE(K, dtype, T, 128)

}  // namespace lockstep::cuda
