// Decomposes one node. For the passes that replace ops by simpler ones: legalize, and distribute if an op cannot be
// placed as a whole.

#pragma once

#include <list>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Replaces `node` by its op's decomposition. The new values take over the names of the results; an operand that is
// returned keeps its own. Returns the first new node, or the node after `node` if the decomposition only returns
// operands. Requires node->op().decompose().
absl::StatusOr<std::list<Node>::iterator> ReplaceByDecomposition(Graph& graph, std::list<Node>::iterator node);

}  // namespace lockstep::passes
