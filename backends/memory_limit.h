// Lowers a graph so that what a rank holds between and during runs is within a limit: its states, constants and
// buckets, which are what they are, and the arena, which grows smaller as values are computed again
// (planning/rematerialize.h). Bodies of loops, such as those over micro-batches, have arenas of their own within it.

#pragma once

#include <cstdint>
#include <vector>

#include "backends/backend.h"
#include "backends/planning/share_states.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

struct LoweredProgram {
  Program program;  // collectives scheduled, results bound
  Recomputation work;
};

// The program of a graph after all passes, in which ranks share some states. With a limit of 0 nothing is computed
// again. If the limit cannot be kept, InvalidArgument says with how many bytes the program can be made.
absl::StatusOr<LoweredProgram> LowerWithin(uint64_t limit, const Graph& graph, const std::vector<StateToShare>& shared,
                                           const Backend& backend, const Target& target);

}  // namespace lockstep
