// Gives every storage of a scheduled program its slice of a buffer. Inputs, states, constants and results are buffers
// of their own; settings share one; the buckets of collectives along one axis of the mesh share one by their lifetimes;
// all other values and the kernels' scratch memory share one arena likewise.

#pragma once

#include <vector>

#include "backends/planning/program.h"

namespace lockstep {

struct BufferPlan {
  std::vector<Buffer> buffers;
  std::vector<BufferSlice> slices;   // by storage
  std::vector<BufferSlice> scratch;  // by instruction; of 0 bytes where the kernel needs none
  int32_t settings = -1;             // the buffer of all settings; -1 if there are none
};

// Also sets the buffers of program.inputs, results and states.
BufferPlan PlanBuffers(Program& program);

// The bytes of the arena that PlanBuffers makes.
uint64_t ArenaBytes(const Program& program);

// A piece of the arena: `bytes` that are in use from instruction `begin` to `end`, both included.
struct ArenaRequest {
  uint64_t bytes = 0;
  int begin = 0, end = 0;
};

// Offsets, aligned to kBufferAlignment, such that requests whose lifetimes meet do not overlap: the largest first, each
// in the smallest gap that holds it (Pisarchyk and Lee, "Efficient memory management for deep neural net inference",
// 2020, greedy by size). `total` becomes the size of the arena.
std::vector<uint64_t> PlanArena(const std::vector<ArenaRequest>& requests, uint64_t& total);

}  // namespace lockstep
