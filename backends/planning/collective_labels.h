// Names, for messages, the values that a pipeline's collective moves or adds. They use the names of the user's model,
// nodes and variables, not those of values made by passes. They depend only on the graph, so that all ranks use the
// same. Any thread may call them.

#pragma once

#include <string>
#include <vector>

#include "core/graph.h"

namespace lockstep {

// For a collective whose operand is at one rank along its axis: "stage 0 to 1, onnx:/fc1/Add, micro-batch 2" or "stage
// 1 to all, result loss". The moved value is described by the node's source (passes/stages/cut_into_stages.h), if it
// has one.
std::string LabelOfTransfer(const Node& node);

// For some results of a reduction: "gradients of fc1.weight, fc1.bias, and result loss". These are the results' names
// if the cut has named them so (passes/stages/names.h); for others the source is used.
std::string LabelOfReduction(const Node& node, const std::vector<size_t>& positions);

}  // namespace lockstep
