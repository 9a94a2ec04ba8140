// Moves loop-invariant nodes out of loops: nodes in the body of a `scan` that depend only on constants of the loop are
// computed once, before it.
//
//   scan %h, %w {body=(%h.t, %w): %t = transpose %w; matmul %h.t, %t …}
//   ==>
//   %t = transpose %w
//   scan %h, %t {body=(%h.t, %t): matmul %h.t, %t …}
//
// Ops that are cheaper to compute where they are read, such as a broadcast, stay. Called by the pass Cse.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Returns true if it changed anything. Does not look at loops in bodies. The next Dce removes operands that became
// unused.
absl::StatusOr<bool> HoistInvariants(Graph& graph);

}  // namespace lockstep::passes
