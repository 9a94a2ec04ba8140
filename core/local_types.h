// From types of the one-rank program to types of what one rank holds, and back. Placements say all that is needed, so
// both directions are exact, and each undoes the other. Mechanical: no rule is asked, nothing is decided.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// What a rank holds of a value of the global `type` that is placed so. Requires SplitsEvenly.
TensorType LocalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh);
// The type of the value of which ranks hold `type`.
TensorType GlobalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh);

// The program that a rank runs, of a placed graph; a graph without a mesh, or that is local, is copied. The error is
// Internal: a placement rule, or an op's inference, that contradicts the other.
absl::StatusOr<Graph> ToLocalTypes(const Graph& graph);

// The placed graph of a local one; any other is copied. An error if the local types are no share of global ones.
absl::StatusOr<Graph> ToGlobalTypes(const Graph& graph);

}  // namespace lockstep
