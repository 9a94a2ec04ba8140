// Arguments of the kernels that sort and that find the largest elements. A tensor is [outer, extent, inner]; a line is
// along its extent.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

inline constexpr int64_t kTile = 1024;  // entries that a block sorts in its own memory

// Sorts lines of `padded` entries, a power of two, each a key and a number, by key and then by number. This is a
// bitonic network, whose blocks are parts of lines with a power of two of entries; `total` is a multiple of `padded`.
//
//   sort_tiles  sorts parts of `block` <= kTile entries, each in the direction that the network needs
//   sort_step   exchanges entries that are `distance` apart in blocks of `block`; one thread per pair
//   sort_tail   all steps in blocks of `block` whose distances are below kTile
//
// A block of threads handles one tile in sort_tiles and sort_tail.
struct SortArgs {
  static constexpr int kPointers = 2;
  uint64_t* keys;
  uint32_t* numbers;
  int64_t total, padded, block, distance;
};

// top_k_keys_<dtype>: computes for each line [padded] the key and number of each element, to be sorted; one thread per
// element.
// top_k_take_b*: the first k elements of each line, in units of an element; one thread per element.
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

// arg_<dtype>: the position of the largest or smallest element of each line, written with `bytes` bytes; one warp per
// line.
struct ArgArgs {
  static constexpr int kPointers = 2;
  const void* x;
  void* y;
  int64_t outer, extent, inner, bytes;
  uint32_t smallest, last;
};

}  // namespace lockstep::cuda
