// Says whether a graph is a valid program, and of what phase. Called before and after the pipeline and after each pass.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Order, operands, types (inferred again), names, results: what every graph satisfies.
absl::Status VerifyStructure(const Graph& graph);

// For a graph with a mesh, the proof that ranks do not diverge: along every axis, each op gets its operands where its
// placement rule requires them, each value is where it is written to be, each state's next value is placed as the state
// is, and each result as it says. A local graph is checked in its global types. The message names the op, its source,
// and the state or result that would be wrong. A graph without a mesh passes.
absl::Status VerifyPlacements(const Graph& graph);

absl::Status Verify(const Graph& graph);  // both

}  // namespace lockstep
