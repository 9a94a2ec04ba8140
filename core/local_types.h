// Converts a graph between global types, those of the one-rank program, and local types, those of the part that one
// rank holds. Placements determine the result, so each direction is the inverse of the other. No placement rule is
// used.

#pragma once

#include <cstdint>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// The type of the part that a rank holds of a value of the global `type`. Requires SplitsEvenly.
TensorType LocalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh);
// The global type of a value whose parts on the ranks have the type `type`.
TensorType GlobalType(const TensorType& type, const PlacementMap& placements, const Mesh& mesh);

// The numbers of rows of a batch that the ranks along the axis `data` have, if these are not equal.
struct RowShares {
  std::vector<int64_t> rows;  // by rank along `data`; empty: equal numbers
  int64_t rank = 0;           // along `data`, of the program that is made
};

// The local program of a placed graph. A graph without a mesh and a local graph are copied. The error is Internal: a
// placement rule and an op's type inference contradict each other.
//
// With `shares`, whose sum is the global batch B, a rank has s/B of every dimension that is split along `data`: the
// first rank the first part, and so on. The programs of the ranks then differ in extents alone. Requires that only
// batches are split along `data`. Returns an error if a dimension cannot be cut so, or if ranks exchange rows: a
// collective along `data` other than a sum, minimum, maximum or product, which all have one type for all ranks.
absl::StatusOr<Graph> ToLocalTypes(const Graph& graph, const RowShares& shares = {});

// The placed graph of a local one; any other is copied. Returns an error if no global types have these local types.
absl::StatusOr<Graph> ToGlobalTypes(const Graph& graph);

}  // namespace lockstep
