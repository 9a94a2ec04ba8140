// Replaces loops by the nodes of their iterations, for callers that look at each value of a step.

#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Replaces each `scan` by copies of its body, one for each iteration: the meaning of the graph stays. The source of a
// copy is that of its node and the iteration, from 0, such as "onnx:/lstm, iteration 2 of 10". Values are scanned by
// slices, and stacked by `concat`. A loop without iterations, or with whose copies the graph would have more than
// `most_nodes` nodes, stays. After an error, the graph is not usable.
absl::Status UnrollLoops(Graph& graph, int64_t most_nodes);

// Returns the source of a node without its iterations, and these: "iteration 1 of 2, iteration 0 of 8" of a loop in a
// loop, the outer one first; empty outside of loops.
std::pair<std::string, std::string> SplitIterations(const std::string& source);

}  // namespace lockstep
