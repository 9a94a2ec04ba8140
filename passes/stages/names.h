// What messages call values of a step that is cut into stages, in names of the model: a rank that waits for one shows
// it. Passes make many values and copies of which a user knows nothing. Plain functions of a graph; any thread.

#pragma once

#include <string>

#include "core/graph.h"

namespace lockstep::passes {

// What moves from a stage to another one: "state fc1.weight", "result loss", or the source of what makes it, such as
// "onnx:/fc1/Add" or "gradient of onnx:/fc1/Add". Of what has none, as in a graph that was written as text, its name.
std::string WhatMoves(const Graph& step, Value value);

// What the ranks of a stage add up: "gradient of fc1.weight", of what the variable's optimizer takes, at once or by way
// of elementwise ops and moved elements, as when it is clipped; or "result loss". Empty if it is neither.
std::string WhatIsReduced(const Graph& step, Value sum);

}  // namespace lockstep::passes
