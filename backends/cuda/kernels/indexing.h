// Arguments of the kernels that read from, and write to, positions that are data (core/ops/indexing.h says what groups,
// rows and counts are).

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

struct Rows {
  int64_t groups, outer, extent, count, inner;
};

// gather_b*: a thread for each unit of y, [groups, count, inner]. Where an index is outside, y is left.
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

// scatter_keys: for each batch [padded] of the indices, to be sorted: key and number of each index, the key being the
// row that it points to. What pads a batch, and indices that are outside, have a key above all rows. A thread for each.
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

enum class ScatterKind : uint32_t { kSum, kProd, kMin, kMax, kReplace };

// scatter_<dtype>, and replace_b* in units: each element of y is that of x, or 0 where x is null, with the updates that
// point to it, one after the other in their order. A thread for each element.
struct ScatterArgs {
  static constexpr int kPointers = 5;
  const void* x;
  const void* updates;
  const uint64_t* keys;  // sorted
  const uint32_t* numbers;
  void* y;
  Rows rows;
  int64_t padded;
  ScatterKind kind;
};

}  // namespace lockstep::cuda
