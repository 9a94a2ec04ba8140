// The part of a split tensor that one rank holds, and the whole tensor assembled from such parts. Any thread.

#pragma once

#include "core/placement.h"
#include "core/tensor.h"

namespace lockstep {

// Returns the elements of `whole` that `rank` holds. The placements that split are applied in the order of the mesh's
// axes. Requires that the ranks share these dimensions evenly.
Tensor LocalPart(const Tensor& whole, const PlacementMap& placements, const Mesh& mesh, int64_t rank);

// The inverse of LocalPart: writes `part`, the elements that `rank` holds, to their places in `whole`, a tensor of type
// `type`. Both are in row-major order. The other elements of `whole` are not changed.
void PutLocalPart(const std::byte* part, const PlacementMap& placements, const Mesh& mesh, int64_t rank,
                  const TensorType& type, std::byte* whole);

// The first rank that holds the same part as `rank` of a value with these placements. Its coordinates are 0 along the
// axes along which the value is replicated, and those of `rank` along the others.
int64_t FirstReplica(const PlacementMap& placements, const Mesh& mesh, int64_t rank);

}  // namespace lockstep
