// Removes unused parts of `scan` nodes: results, values that are carried only for these, and operands. A carried value
// that does not change becomes a constant of the loop.
//
//   %h, %ys, %zs = scan %h0, %c, %xs {carried=2, ...}     with %zs unused and %c carried on unchanged
//   ==>
//   %h, %ys = scan %h0, %xs, %c {carried=1, ...}
//
// Called by the pass Dce.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Returns true if it changed anything. Does not look at loops in bodies.
absl::StatusOr<bool> TrimLoops(Graph& graph);

}  // namespace lockstep::passes
