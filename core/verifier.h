// Checks that a graph is a valid program. Called before and after the pipeline and after each pass.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Checks the properties of every graph: order, operands, types (inferred again), names, results.
absl::Status VerifyStructure(const Graph& graph);

// Proves for a graph with a mesh that ranks do not diverge. Along every axis, operands are placed as the placement
// rules require, each value has its written placement, the next value of a state is placed as the state, and each
// result as declared. A local graph is checked in its global types. The message names the op, its source, and the state
// or result that would be wrong. A graph without a mesh passes.
absl::Status VerifyPlacements(const Graph& graph);

absl::Status Verify(const Graph& graph);  // checks both

}  // namespace lockstep
