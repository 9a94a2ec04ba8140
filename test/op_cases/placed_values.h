// For tests of placements: the part of a placed value on a rank, and the possible placements of a value.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/placement.h"
#include "core/status.h"
#include "test/op_cases/op_case.h"

namespace lockstep {

// The part of `rank` along a dimension that `ranks` divides.
Tensor SliceOf(const Tensor& whole, int64_t dim, int64_t rank, int64_t ranks);

// The part of `whole` on `rank`. Terms of a reduction differ between ranks if the dtype allows.
Tensor OnRank(const Tensor& whole, const Placement& placement, int64_t rank, int64_t ranks);

// The placements that an operand can have along an axis of `ranks`. Infinities and NaN are not sums of terms; bool has
// no sums.
std::vector<Placement> PlacementsOf(const CaseOperand& operand, int64_t ranks);

// Returns the local form of a placed graph. Checks that both are valid and that the placed graph can be recovered from
// the local one.
absl::StatusOr<Graph> VerifiedLocal(const Graph& placed);

}  // namespace lockstep
