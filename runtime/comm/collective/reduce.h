// The arithmetic of reductions: combines elements of several ranks' buffers in rank order. Pure functions, any thread.
// Vectorised for the machine on which they run, with the same bits on every machine.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/placement.h"

namespace lockstep {

// The size in bytes of one accumulator. Reductions of f16 and bf16 accumulate in f32, means of integers and bool in 64
// bits, and all others in the dtype itself.
size_t AccumulatorSize(DType dtype, ReduceKind kind);

// One reduction of `count` elements. `inputs` are the buffers of consecutive ranks, lowest rank first. `prefix`, if not
// null, holds the accumulators of the ranks before them. The accumulators are written to `partial`, for the ranks that
// follow. If it is null, the results (divided by `world_size` for a mean) are written to each of `outputs`. Outputs may
// be inputs. Instead of inputs and a prefix, `partials` may be given: accumulators of consecutive ranks, which are
// combined in their order.
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

// Requires at least one input or an element of `partials`.
void Reduce(const Reduction& reduction);

}  // namespace lockstep
