// The division of a loop nest into units of work for a CPU. A code generator turns the plan into code
// (backends/codegen/, with LLVM). Plain data; any thread.

#pragma once

#include <cstdint>
#include <utility>

#include "backends/loops/loop_info.h"
#include "backends/loops/loop_nest.h"
#include "backends/loops/loop_sizes.h"

namespace lockstep {

struct LoopPlan : LoopNest {
  explicit LoopPlan(LoopNest nest = {}) : LoopNest(std::move(nest)) {}

  // A unit is one index of each kept dimension except the last, one block of `block` indices of the last dimension if
  // that is kept, and one chunk of `chunk_length` indices of `chunk_dim`. With more than one chunk, partial results are
  // combined in scratch memory.
  int64_t block = 0;
  int64_t chunk_dim = -1;  // -1 if num_chunks is 1
  int64_t num_chunks = 1, chunk_length = 0;
  unsigned lanes = 0;  // of a vector
  LoopInfo info;

  int64_t num_blocks() const { return vector_reduced() ? 1 : (extents.back() + block - 1) / block; }
  // The bytes of one reduction's partial results in scratch memory: [num_chunks, num_kept] of at most 8 bytes each,
  // padded.
  int64_t scratch_stride() const { return (num_chunks * num_kept() * 8 + 63) / 64 * 64; }
};

// Fails as MakeLoopNest does.
absl::StatusOr<LoopPlan> PlanLoop(const Graph& body, const LoopSizes& sizes = {});

}  // namespace lockstep
