// Reorders the nodes of a graph: among the nodes whose operands are all computed, the one with the smallest priority
// comes next; the node's id breaks ties. For passes that merge or move nodes.

#pragma once

#include <cstdint>
#include <functional>

#include "core/graph.h"

namespace lockstep::passes {

// Calls `priority` once for each node. If the priority is the node's position, a valid order stays unchanged. If
// `keep_collectives`, collectives keep their order.
void ReorderTopologically(Graph& graph, const std::function<int64_t(const Node&)>& priority,
                          bool keep_collectives = false);

// Reorders with a node's position as its priority: repairs the order after nodes were inserted too early or too late.
void RepairOrder(Graph& graph, bool keep_collectives = false);

}  // namespace lockstep::passes
