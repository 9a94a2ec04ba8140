// Takes one node apart, for the passes that replace ops by simpler ones: legalize, and distribute where an op cannot be
// placed whole.

#pragma once

#include <list>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Replaces `node` by its op's decomposition, which takes over the names of its results (an operand that is returned
// keeps its own). Returns the first node of what now stands there; if the decomposition only returns operands, the node
// after. Requires node->op().decompose().
absl::StatusOr<std::list<Node>::iterator> ReplaceByDecomposition(Graph& graph, std::list<Node>::iterator node);

}  // namespace lockstep::passes
