// Lets a loop compute again what it would read of an earlier one, where that moves fewer bytes; for FuseElementwise
// alone, between the choice of groups and their fusion. A backward pass is where it matters: of gelu(x + b) it wants
// x + b scaled in two ways, which the forward loop would store both, beside what it had read to compute them.
//
//   %z, %h, %y = fusion %x, %b      // z = (x + b) / sqrt(2), h = (x + b) / 2, y = h * (1 + erf(z))
//   …                                                                   ==>     %y = fusion %x, %b
//   %dx = fusion %dy, %z, %h                                                    …
//                                                                               %dx = fusion %dy, %x, %b
//
// What is computed again has the bits that it had. Only cheap ops are, and what they read lives longer by at most as
// many bytes as are not stored (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, in its simplest
// form).

#pragma once

#include <vector>

#include "core/graph.h"
#include "passes/optimize/fuse_elementwise.h"

namespace lockstep::passes {

// `groups` are those of FusionGroups. Copies of nodes are added to them, in the order of use, and to `graph`, out of
// order; what nobody reads any more is taken out of both. A group may be empty afterwards.
absl::Status RecomputeInLoops(Graph& graph, std::vector<std::vector<Node*>>& groups, const FusionOptions& options);

}  // namespace lockstep::passes
