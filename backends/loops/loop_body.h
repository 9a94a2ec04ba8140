// The body of the loop that a node is.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Of a fusion its own body, else a graph of this node alone.
absl::StatusOr<Graph> LoopBodyOf(const Node& node);

// What is said when a node of a body refuses an element, by the node's position: as the interpreter does, with its
// source in the model. Empty for those that refuse none.
std::vector<std::string> RefusalMessages(const Graph& body);

}  // namespace lockstep
