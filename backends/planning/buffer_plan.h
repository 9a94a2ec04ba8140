// Gives every storage of a scheduled program its slice of a buffer. Inputs, states, constants and results have separate
// buffers, and all settings share one. The buckets of collectives along one axis of the mesh share a buffer by
// lifetimes. All other values and the kernels' scratch memory share one arena by lifetimes.

#pragma once

#include <vector>

#include "backends/planning/program.h"

namespace lockstep {

struct BufferPlan {
  std::vector<Buffer> buffers;
  std::vector<BufferSlice> slices;   // by storage
  std::vector<BufferSlice> scratch;  // by instruction; 0 bytes if the kernel needs none
  int32_t settings = -1;             // the buffer of all settings; -1 if there are none
};

// Plans the buffers. Also sets the buffers of program.inputs, results and states.
BufferPlan PlanBuffers(Program& program);

// Returns the size in bytes of the arena that PlanBuffers would make.
uint64_t ArenaBytes(const Program& program);

// A range of the arena: `bytes` that are in use from instruction `begin` to `end`, both included.
struct ArenaRequest {
  uint64_t bytes = 0;
  int begin = 0, end = 0;
};

// Returns offsets, aligned to kBufferAlignment, at which requests with overlapping lifetimes do not overlap. Places the
// largest request first, each in the smallest gap that holds it (Pisarchyk and Lee, "Efficient memory management for
// deep neural net inference", 2020, greedy by size). Sets `total` to the size of the arena.
std::vector<uint64_t> PlanArena(const std::vector<ArenaRequest>& requests, uint64_t& total);

}  // namespace lockstep
