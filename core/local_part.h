// What a rank holds of a tensor that is split over a mesh, and the whole put together of such parts. Any thread.

#pragma once

#include "core/placement.h"
#include "core/tensor.h"

namespace lockstep {

// The elements of `whole` that `rank` holds: one dimension after the other is cut where a placement splits it, in the
// order of the mesh's axes. Requires that the ranks share these dimensions evenly.
Tensor LocalPart(const Tensor& whole, const PlacementMap& placements, const Mesh& mesh, int64_t rank);

// The reverse: writes the row-major elements `part`, which `rank` holds, to their places in `whole`, a tensor of type
// `type` in row-major order. The other elements stay as they are.
void PutLocalPart(const std::byte* part, const PlacementMap& placements, const Mesh& mesh, int64_t rank,
                  const TensorType& type, std::byte* whole);

// The first rank that holds what `rank` holds of a value that is placed so: it has the same coordinates along all
// axes but those along which the value is replicated, where it has 0.
int64_t FirstReplica(const PlacementMap& placements, const Mesh& mesh, int64_t rank);

}  // namespace lockstep
