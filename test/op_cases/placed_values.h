// For tests of placements: what a rank holds of a value that is placed somehow, and where a value may be.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/placement.h"
#include "core/status.h"
#include "test/op_cases/op_case.h"

namespace lockstep {

// The part of `rank`, of `ranks`, along a dimension that they can share evenly.
Tensor SliceOf(const Tensor& whole, int64_t dim, int64_t rank, int64_t ranks);

// What `rank` holds of `whole`. Shares of a reduction are different on all ranks where the dtype allows.
Tensor OnRank(const Tensor& whole, const Placement& placement, int64_t rank, int64_t ranks);

// The placements that an operand can have along an axis of `ranks`. Infinities and NaN are no sum of shares; bool has
// no sums.
std::vector<Placement> PlacementsOf(const CaseOperand& operand, int64_t ranks);

// The local form of a placed graph, if both are valid and the one gives the other back.
absl::StatusOr<Graph> VerifiedLocal(const Graph& placed);

}  // namespace lockstep
