// Lets a loop recompute values that it would read from an earlier loop, if that moves fewer bytes. For FuseElementwise
// alone, between the choice of groups and their fusion. It matters for backward passes: for gelu(x + b) the backward
// pass needs x + b scaled in two ways, and the forward loop would store both, although x and b are in memory already.
//
//   %z, %h, %y = fusion %x, %b      // z = (x + b) / sqrt(2), h = (x + b) / 2, y = h * (1 + erf(z))
//   …                                                                   ==>     %y = fusion %x, %b
//   %dx = fusion %dy, %z, %h                                                    …
//                                                                               %dx = fusion %dy, %x, %b
//
// Recomputed values have the same bits. Only cheap ops are recomputed. The values that they read live longer, by at
// most as many bytes as are no longer stored (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, in
// its simplest form). If a value stays stored because another kernel reads it, a loop recomputes it only if what it
// reads besides is at most a sixteenth of the value, such as the vectors of a normalisation. If one of these is a state
// that is updated before, the update cannot be in place, and a copy of the vector is added.

#pragma once

#include <vector>

#include "core/graph.h"
#include "passes/optimize/fuse_elementwise.h"

namespace lockstep::passes {

// Requires the groups of FusionGroups. Adds copies of nodes to the groups, in the order of use, and to `graph`, in any
// order. Removes unused nodes from both. A group may be empty afterwards.
absl::Status RecomputeInLoops(Graph& graph, std::vector<std::vector<Node*>>& groups, const FusionOptions& options);

}  // namespace lockstep::passes
