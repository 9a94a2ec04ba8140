// Runs passes in the bodies of `scan` nodes. Bodies of fusions are left alone, as code generation relies on their form.

#pragma once

#include <functional>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Calls `run` with a copy of the body of each `scan` in `graph`; the copy has the mesh of `graph`. Replaces the body by
// the copy if `run` returns true, which means that it changed the copy. Returns true if any body was replaced. `run`
// must itself call InBodies to reach nested loops.
absl::StatusOr<bool> InBodies(Graph& graph, const std::function<absl::StatusOr<bool>(Graph& body)>& run);

}  // namespace lockstep::passes
