// Decides which nodes share a loop, for FuseElementwise alone. A group must be computable in one pass over memory:
//
//  - Without reductions, every node has as many elements as the loop.
//  - With reductions, all of them reduce the same dims of the same shape. Every node has that shape or the shape after
//    the reduction. A reduced value may be broadcast back (softmax) if each row is reduced on its own and is short.
//  - Ops that move elements (transpose, slice) are at the entry of the loop, and only the group reads them. Ops that
//    keep the order (reshape) may also be in the middle of a loop without reductions.
//  - No value leaves a group and comes back: groups, and collectives in their order, depend on each other without a
//    cycle.
//  - All nodes are at the same rank of an axis (Placement::At), or none is at a rank. No transfer from or to that rank
//    lies between them. Otherwise the sums of a pipeline stage over micro-batches would be fused into one loop at the
//    end, and all their terms would have to be kept until then.
//  - A group whose result a collective reads contains no node that comes after that result.
//
// First, producers are joined with their consumers, then groups that read the same large value.

#pragma once

#include <unordered_set>
#include <vector>

#include "core/graph.h"
#include "passes/optimize/fuse_elementwise.h"

namespace lockstep::passes {

// Returns true if the node is copied into every body that uses it: an op that is kRematerialised, or a constant of
// equal elements.
bool IsRematerializable(const Node& node);

// Returns the value that is read through nodes that are copied into bodies, such as the operand of a broadcast. Returns
// the value itself if its node is not copied or has no operands.
Value SourceOfCopies(Value value);

// Returns true if anything outside of the group uses `value`, the result of one of its nodes. Looks through copied
// nodes. `results` are the results of the graph.
bool IsLiveOut(Value value, const std::unordered_set<const Node*>& group,
               const std::unordered_set<Value, ValueHash>& results);

// Returns the groups in the order of their first nodes, each with its nodes in the graph's order. Leaves out groups of
// one node, except those that read copied nodes.
std::vector<std::vector<Node*>> FusionGroups(const Graph& graph, const FusionOptions& options);

}  // namespace lockstep::passes
