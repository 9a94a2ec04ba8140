// Removes from `scan` nodes what nobody needs: results, what is carried for them alone, and operands. A value that is
// carried on as it is becomes a constant of the loop.
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

// True if it changed anything. Loops in bodies are not looked at.
absl::StatusOr<bool> TrimLoops(Graph& graph);

}  // namespace lockstep::passes
