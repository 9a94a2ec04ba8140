// Decides which nodes share a loop, for FuseElementwise alone. One pass over memory must do for a group:
//
//  - without reductions, every node has as many elements as the loop;
//  - with reductions, all of them reduce the same dims of the same shape; every node has that shape, or the one that is
//    left. What was reduced may be broadcast back (softmax) where each row is reduced on its own and is short;
//  - ops that move elements (transpose, slice) are read by the group alone; those that keep the order (reshape) too,
//    and without reductions they may be in the middle;
//  - no value leaves a group and comes back: groups, and collectives in their order, depend on each other without a
//    cycle;
//  - all of it is at the same rank of an axis (Placement::At), or none is at any; and at that rank nothing comes in or
//    goes out between: else what a stage of a pipeline adds up, one micro-batch after the other, would be added at the
//    end, of terms that all had been kept;
//  - a group that a collective reads takes in nothing that comes after it.
//
// First a producer and its consumer are joined, then groups that read the same large value.

#pragma once

#include <unordered_set>
#include <vector>

#include "core/graph.h"
#include "passes/optimize/fuse_elementwise.h"

namespace lockstep::passes {

// Whether the node is copied into every body that uses it: an op that is kRematerialised, or a constant of equal
// elements.
bool IsRematerializable(const Node& node);

// What is read through a value that every body gets a copy of: the source of a broadcast. A copy that reads nothing is
// itself.
Value LookThroughCopies(Value value);

// Whether anybody but the group needs `value`, the result of one of its nodes. Copied nodes are looked through.
bool IsLiveOut(Value value, const std::unordered_set<const Node*>& group,
               const std::unordered_set<Value, ValueHash>& results);

// Groups in the order of their first nodes, the nodes of each in the graph's order. Nodes that are alone are not
// listed.
std::vector<std::vector<Node*>> FusionGroups(const Graph& graph, const FusionOptions& options);

}  // namespace lockstep::passes
