// What a rank holds of a tensor that is split over a mesh. The executor calls it when a state is assigned. Any thread.

#pragma once

#include <cstddef>
#include <vector>

#include "core/placement.h"
#include "runtime/executable.h"

namespace lockstep {

// The part of `rank` of a row-major tensor of info.global_type, row-major: one dimension after the other is cut where a placement
// splits it.
std::vector<std::byte> LocalPart(const ValueInfo& info, const Mesh& mesh, int rank, const std::byte* data);

}  // namespace lockstep
