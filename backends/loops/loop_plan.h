// How a nest of loops is cut into units of work for a CPU. An emitter turns the plan into code (backends/codegen/ with
// LLVM). Plain values; any thread.

#pragma once

#include <cstdint>
#include <utility>

#include "backends/loops/loop_info.h"
#include "backends/loops/loop_nest.h"
#include "backends/loops/loop_sizes.h"

namespace lockstep {

struct LoopPlan : LoopNest {
  explicit LoopPlan(LoopNest nest = {}) : LoopNest(std::move(nest)) {}

  // A unit is one index of each kept dimension but the last, one block of `block` indices of the last if that is
  // kept, and one chunk of `chunk_length` indices of `chunk_dim`. With more than one chunk, partial results meet in
  // the scratch memory.
  int64_t block = 0;
  int64_t chunk_dim = -1;  // -1 if num_chunks is 1
  int64_t num_chunks = 1, chunk_length = 0;
  unsigned lanes = 0;  // of the vectors
  LoopInfo info;

  int64_t num_blocks() const { return vector_reduced() ? 1 : (extents.back() + block - 1) / block; }
  // Bytes of scratch memory of one reduction's partial results: [num_chunks, num_kept] of 8 bytes at most, padded.
  int64_t scratch_stride() const { return (num_chunks * num_kept() * 8 + 63) / 64 * 64; }
};

// Fails as MakeLoopNest does.
absl::StatusOr<LoopPlan> PlanLoop(const Graph& body, const LoopSizes& sizes = {});

}  // namespace lockstep
