// Says whether a graph is a valid program, and of what phase. Called before and after the pipeline and after each pass.

#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Order, operands, types (inferred again), names, results: what every graph satisfies.
absl::Status VerifyStructure(const Graph& graph);

// For a graph with a mesh, the proof that ranks do not diverge: along every axis, each op gets its operands where its
// placement rule requires them, each state's next value is placed as the state is, and each result as it says. The message names the op,
// its source, and the state or result that would be wrong. A graph without a mesh passes.
absl::Status VerifyPlacements(const Graph& graph);

absl::Status Verify(const Graph& graph);  // both

// The placement of every value along one axis of the graph's mesh, derived from the inputs' placements by the ops' rules.
// An op whose operand is not where it must be is an error (a replicated operand may stand for a split one).
absl::StatusOr<std::unordered_map<Value, Placement, ValueHash>> InferPlacements(const Graph& graph,
                                                                                std::string_view axis);

}  // namespace lockstep
