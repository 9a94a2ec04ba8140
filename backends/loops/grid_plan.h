// The division of a loop nest into blocks of threads for a GPU. A code generator turns the plan into a kernel
// (backends/codegen/grid_function.h). Plain data; any thread.
//
// The kept positions of a nest are numbered row-major, and so are the reduced positions of each. A thread processes
// `lanes` neighbours along the last dimension at a time. `splits` threads of a block share the reduced positions of one
// kept vector; they are a group:
//
//   last dimension reduced   thread = group * splits + split     neighbours read neighbours of one row
//   last dimension kept      thread = split * groups + group     neighbours read neighbours of one row of columns
//
// Split s processes the reduced vectors s, s + splits, ... of its chunk. Then the group combines the threads' values,
// in an order that depends only on the plan. With more than one chunk, each chunk writes its part to scratch memory,
// and a second kernel combines the parts.

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "backends/loops/loop_nest.h"

namespace lockstep {

// Sizes for cutting loops for a GPU, and the accumulators of their sums. They determine the last bits of sums: all GPUs
// use the defaults, except for `sums_in_pairs`.
struct GridSizes {
  int64_t threads = 256;      // of a block, at most; a power of two, at least kWarp
  int64_t vector_bytes = 16;  // bytes that a thread reads or writes at once
  int64_t blocks = 1024;      // about this many keep a GPU busy
  int64_t vectors = 4;        // of a thread that shares a sum with others, at least
  // Sums of f32 are accumulated in pairs of f32 (backends/codegen/float_pair.h) instead of in f64, which is slow on
  // some GPUs.
  bool sums_in_pairs = false;

  bool operator==(const GridSizes&) const = default;
};

struct GridPlan : LoopNest {
  static constexpr int64_t kWarp = 32;

  explicit GridPlan(LoopNest nest = {}) : LoopNest(std::move(nest)) {}

  int64_t lanes = 1;    // divides the last dimension's extent
  int64_t threads = 1;  // of a block
  int64_t splits = 1;   // a power of two
  int64_t num_chunks = 1;
  int64_t chunk_length = 0;    // reduced vectors of a chunk
  bool sums_in_pairs = false;  // as in GridSizes
  std::vector<std::vector<int>> in_place;

  bool IsInPairs(const Reduction& reduction) const {
    return sums_in_pairs && reduction.sum_dtype() != reduction.dtype && reduction.kind != ReduceKind::kProd;
  }
  int64_t groups() const { return threads / splits; }  // of a block
  int64_t kept_vectors() const { return num_kept() / (vector_reduced() ? 1 : lanes); }
  int64_t reduced_vectors() const { return num_reduced() / (vector_reduced() ? lanes : 1); }
  // The grid is kept_blocks() x num_chunks; there is nothing to run if kept_blocks() is 0.
  int64_t kept_blocks() const { return (kept_vectors() + groups() - 1) / groups(); }
  // True if each thread keeps its part of the reduced positions in registers from one phase to the next, so that memory
  // is read once: the part is at most kKept elements, and one warp has the whole sum.
  bool keeps_rows() const {
    return num_phases > 1 && splits <= kWarp && reduced_vectors() % splits == 0 &&
           reduced_vectors() / splits * lanes <= kKept;
  }
  static constexpr int64_t kKept = 32;
  bool has_finish() const { return num_chunks > 1; }
  // The second kernel has blocks of kFinishThreads threads. A warp combines the chunks of a kept position, or, if there
  // are more than a thread's 2, the whole block.
  int64_t finish_blocks() const;
  int64_t finish_splits() const { return num_chunks > 2 * kWarp ? kFinishThreads : kWarp; }
  static constexpr int64_t kFinishThreads = 256;
  // The memory of a block in which its threads combine their sums: at most 8 bytes for each lane, or for each warp. A
  // kernel with more than kMostShared does not start on a GPU; no plan of the default sizes has more.
  static constexpr int64_t kMostShared = 48 << 10;
  int64_t shared_bytes() const {
    const int64_t run = vector_reduced() ? threads / kWarp : threads * lanes;
    return std::max(run, kFinishThreads / kWarp) * 8;
  }
  // The bytes of one reduction's partial results: [num_chunks, num_kept] of at most 8 bytes each, padded.
  int64_t scratch_stride() const { return (num_chunks * num_kept() * 8 + 63) / 64 * 64; }
  int64_t scratch_bytes() const {
    return has_finish() ? scratch_stride() * static_cast<int64_t>(reductions.size()) : 0;
  }
};

// Fails as MakeLoopNest does.
absl::StatusOr<GridPlan> PlanGrid(const Graph& body, const GridSizes& sizes = {});

}  // namespace lockstep
