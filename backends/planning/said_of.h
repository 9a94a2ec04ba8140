// What messages call what a collective of a pipeline moves or adds up: in names of the model that its user knows, nodes
// and variables, and not in those of values that passes made. Of the graph, so that all ranks say the same. Any thread.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"

namespace lockstep {

// Of a collective whose operand one rank along its axis alone has: "stage 0 to 1, onnx:/fc1/Add, micro-batch 2" or
// "stage 1 to all, result loss". What moves is the node's source (passes/stages/cut_into_stages.h), if it has one.
std::string SaidOfTransfer(const Node& node);

// Of some results of a reduction: "gradients of fc1.weight, fc1.bias, and result loss". That is their names, if the cut
// has named them so (passes/stages/names.h); of others the source counts.
std::string SaidOfReduction(const Node& node, const std::vector<size_t>& positions);

}  // namespace lockstep
