// Sizes for cutting the loops of a target. Plain data.

#pragma once

#include <cstdint>

namespace lockstep {

// In elements. The sizes determine the order of summation, so different sizes give different last bits: processors
// whose results must agree use the same sizes, whatever the width of their vectors. The defaults are for CPUs.
struct LoopSizes {
  unsigned lanes = 16;         // of a vector; sums use four vectors in turn to hide the latency of additions
  int64_t block = 4096;        // of an elementwise loop: 16 KiB of f32
  int64_t column_block = 256;  // accumulators of a block of columns stay in the first-level cache
  int64_t chunk = 16384;       // a reduction with few results is cut into chunks of at least this size
  int64_t units = 64;          // and into about this many units at most
  int64_t grain = 32768;       // elements of light work that are worth a thread

  bool operator==(const LoopSizes&) const = default;
};

}  // namespace lockstep
