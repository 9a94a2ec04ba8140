// Names for values of a step that is cut into stages, for messages about a rank that waits for one. They are names of
// the model, since users do not know the values and copies that passes make. Pure functions of a graph; any thread.

#pragma once

#include <string>

#include "core/graph.h"

namespace lockstep::passes {

// Returns a name for a value that moves from one stage to another: "state fc1.weight", "result loss", or the source of
// its node, such as "onnx:/fc1/Add" or "gradient of onnx:/fc1/Add". If the node has no source, as in a graph that was
// written as text, returns the value's name.
std::string TransferName(const Graph& step, Value value);

// Returns a name for a sum over the ranks of a stage: "gradient of fc1.weight" if the variable's optimizer takes it,
// directly or through ops that are elementwise or move elements, such as clipping; or "result loss". Returns "" if it
// is neither.
std::string ReductionName(const Graph& step, Value sum);

}  // namespace lockstep::passes
