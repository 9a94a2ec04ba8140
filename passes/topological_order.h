// Reorders the nodes of a graph: among the nodes whose operands are all computed, the one with the least priority comes
// next. For the passes that merge or move nodes; equal priorities cannot occur, since the node's id breaks ties.

#pragma once

#include <cstdint>
#include <functional>

#include "core/graph.h"

namespace lockstep::passes {

// `priority` is asked once for each node. Priorities of the nodes' present positions keep a valid order unchanged.
// Collectives stay in the order in which they are if `keep_collectives`.
void ReorderTopologically(Graph& graph, const std::function<int64_t(const Node&)>& priority,
                          bool keep_collectives = false);

// The same with the present position as the priority: repairs an order after nodes were inserted too early or too late.
void RepairOrder(Graph& graph, bool keep_collectives = false);

}  // namespace lockstep::passes
