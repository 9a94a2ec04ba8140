// Converts a graph between global types, those of the one-rank program, and local types, those of the part that one
// rank holds. Placements determine the result, so each direction is the inverse of the other. No placement rule is
// used.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// The type of the part that a rank holds of a value of the global `type`. Requires SplitsEvenly.
TensorType LocalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh);
// The global type of a value whose parts on the ranks have the type `type`.
TensorType GlobalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh);

// The local program of a placed graph. A graph without a mesh and a local graph are copied. The error is Internal: a
// placement rule and an op's type inference contradict each other.
absl::StatusOr<Graph> ToLocalTypes(const Graph& graph);

// The placed graph of a local one; any other is copied. Returns an error if no global types have these local types.
absl::StatusOr<Graph> ToGlobalTypes(const Graph& graph);

}  // namespace lockstep
