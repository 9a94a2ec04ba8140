// Arguments of the kernels that read or write positions given by data (core/ops/indexing.h defines groups, rows and
// counts).

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

struct Rows {
  int64_t groups, outer, extent, count, inner;
};

// gather_b*: one thread per unit of y, [groups, count, inner]. If an index is out of range, its part of y is not
// written.
struct GatherArgs {
  static constexpr int kPointers = 4;
  const void* x;
  const void* indices;
  void* y;
  uint64_t* error_word;
  Rows rows;
  uint32_t error_id;
  uint32_t wide;  // the indices are i64, not i32
};

// scatter_keys: computes, for each batch [padded] of the indices, the key and number of each index, to be sorted. The
// key is the row that the index points to. Padding and indices out of range have a key above all rows. One thread per
// index.
struct ScatterKeysArgs {
  static constexpr int kPointers = 4;
  const void* indices;
  uint64_t* keys;
  uint32_t* numbers;
  uint64_t* error_word;
  int64_t batches, count, padded, extent;
  uint32_t error_id;
  uint32_t wide;
};

// scatter_begins: computes, for each batch [extent + 1], the position of the first sorted key of each row, and after
// the last row the end of the keys in range. One thread per position.
struct ScatterBeginsArgs {
  static constexpr int kPointers = 2;
  const uint64_t* keys;  // sorted
  uint32_t* begins;
  int64_t batches, count, padded, extent;
};

enum class ScatterKind : uint32_t { kSum, kProd, kMin, kMax, kReplace };

// scatter_<dtype>, and replace_b* in units: each element of y is that of x, or 0 if x is null, combined with the
// updates that point to it, in their order. One thread per element or, if `is_packed`, per 16 bytes, in which `rows`
// then counts.
struct ScatterArgs {
  static constexpr int kPointers = 6;
  const void* x;
  const void* updates;
  const uint64_t* keys;  // sorted
  const uint32_t* numbers;
  const uint32_t* begins;  // of the rows among the keys; null: each thread searches its row's
  void* y;
  Rows rows;
  int64_t padded;
  ScatterKind kind;
  uint32_t is_packed;
};

}  // namespace lockstep::cuda
