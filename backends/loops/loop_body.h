// The body of the loop that a node becomes.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Returns the body of a fusion, or else a graph with only this node.
absl::StatusOr<Graph> LoopBodyOf(const Node& node);

// Returns, by position, the message if a node of a body refuses an element: the interpreter's message, with the node's
// source in the model. Empty for nodes that refuse none.
std::vector<std::string> RefusalMessages(const Graph& body);

}  // namespace lockstep
