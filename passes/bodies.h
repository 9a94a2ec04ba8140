// Passes in the bodies of loops: what a pass does to a program it does to the bodies of `scan` nodes, too, at any
// depth. (The body of a fusion is a contract with code generation, and stays.)

#pragma once

#include <functional>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Calls `run` with a copy of each body in `graph`, as a graph with the mesh that `graph` has, and puts the copy in the
// body's place if `run` returns true, which says that it has changed it. True if any was. `run` calls InBodies itself,
// or is a pass that does, where loops stand in loops.
absl::StatusOr<bool> InBodies(Graph& graph, const std::function<absl::StatusOr<bool>(Graph& body)>& run);

}  // namespace lockstep::passes
