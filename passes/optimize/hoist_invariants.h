// What every iteration of a loop computes alike is computed once, before it: in the body of a `scan`, the nodes that
// need nothing but constants of the loop.
//
//   scan %h, %w {body=(%h.t, %w): %t = transpose %w; matmul %h.t, %t …}
//   ==>
//   %t = transpose %w
//   scan %h, %t {body=(%h.t, %t): matmul %h.t, %t …}
//
// What is rather made where it is read, such as a broadcast, stays. Called by the pass Cse.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// True if it changed anything. Loops in bodies are not looked at. Operands that are left over go with the next Dce.
absl::StatusOr<bool> HoistInvariants(Graph& graph);

}  // namespace lockstep::passes
