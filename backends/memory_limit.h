// Lowers a graph so that the memory of a rank, between and during runs, stays within a limit. Its states, constants and
// buckets have fixed sizes; the arena shrinks if values are recomputed (planning/rematerialize.h). Bodies of loops,
// such as those over micro-batches, have their own arenas within it.

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

// Returns the program of a graph after all passes, in which ranks share the states `shared`. With a limit of 0 nothing
// is recomputed. If the limit is too small, returns InvalidArgument with the number of bytes that the program needs.
absl::StatusOr<LoweredProgram> LowerWithin(uint64_t limit, const Graph& graph, const std::vector<StateToShare>& shared,
                                           const Backend& backend, const Target& target);

}  // namespace lockstep
