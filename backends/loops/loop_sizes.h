// How a target wants its loops cut. Plain values.

#pragma once

#include <cstdint>

namespace lockstep {

// In elements. They decide the order in which sums are taken, so other sizes give other last bits: processors that are
// to agree have the same ones, whatever the width of their vectors. The defaults are for CPUs.
struct LoopSizes {
  unsigned lanes = 16;         // of a vector; four of them in turn where one sum has to be hidden behind another
  int64_t block = 4096;        // of an elementwise loop: 16 KiB of f32
  int64_t column_block = 256;  // accumulators of a block of columns stay in the first-level cache
  int64_t chunk = 16384;       // a reduction with few results is cut into chunks of at least this,
  int64_t units = 64;          // and into at most about so many units
  int64_t grain = 32768;       // elements of light work that are worth a thread

  bool operator==(const LoopSizes&) const = default;
};

}  // namespace lockstep
