// Arguments of the kernels that sort, and that find what is largest. A tensor is [outer, extent, inner]; a line runs
// along its extent.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

inline constexpr int64_t kTile = 1024;  // entries that a block sorts in memory of its own

// Sorts lines of `padded` entries, a power of two, each a key and a number, by key and then by number. It is a bitonic
// network, whose blocks are lines' parts of a power of two; `total` is a multiple of `padded`.
//
//   sort_tiles  sorts parts of `block` <= kTile entries, each way that the network has them
//   sort_step   exchanges entries that are `distance` apart in blocks of `block`; a thread for each pair
//   sort_tail   all steps in blocks of `block` whose distances are below kTile
//
// A block of threads takes a tile of sort_tiles and sort_tail.
struct SortArgs {
  static constexpr int kPointers = 2;
  uint64_t* keys;
  uint32_t* numbers;
  int64_t total, padded, block, distance;
};

// top_k_keys_<dtype>: for each line [padded] key and number of each element, to be sorted. A thread for each.
// top_k_take_b*: the first k of each line, in units of an element; a thread for each.
struct TopKArgs {
  static constexpr int kPointers = 5;
  const void* x;
  uint64_t* keys;
  uint32_t* numbers;
  void* values;
  int64_t* indices;
  int64_t outer, extent, inner, padded, k;
  uint32_t largest;
};

// arg_<dtype>: the position of the largest element of each line, or of the smallest, written with `bytes` bytes; a
// warp for each line.
struct ArgArgs {
  static constexpr int kPointers = 2;
  const void* x;
  void* y;
  int64_t outer, extent, inner, bytes;
  uint32_t smallest, last;
};

}  // namespace lockstep::cuda
