// The arithmetic of reductions: elements of several ranks' buffers combined in rank order. Pure functions, any thread;
// vectorised for the machine they run on, with the same bits on every machine.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/placement.h"

namespace lockstep {

// Reductions are accumulated in f32 for f16 and bf16, in 64 bits for means of integers and bool, else in the dtype
// itself. This is the size of one such accumulator.
size_t AccumulatorSize(DType dtype, ReduceKind kind);

// One reduction of `count` elements. The ranks' buffers are those of neighbouring ranks, lowest rank first; `prefix`,
// if not null, holds the accumulators of the ranks before them. Either the accumulators go to `partial`, for the ranks
// that follow, or, if that is null, the results (divided by `world_size` for a mean) go to each of `outputs`. Outputs
// may be inputs. Or there are no inputs and no prefix, but `partials`: accumulators of neighbouring ranks each, which
// are combined in their order.
struct Reduction {
  ReduceKind kind = ReduceKind::kSum;
  DType dtype = DType::kF32;
  int64_t count = 0;
  int world_size = 1;
  std::span<const std::byte* const> inputs = {};
  std::span<std::byte* const> outputs = {};
  const std::byte* prefix = nullptr;
  std::byte* partial = nullptr;
  std::span<const std::byte* const> partials = {};
};

// Requires at least one input, or partial.
void Reduce(const Reduction& reduction);

}  // namespace lockstep
