// Replaces loops by the nodes of their iterations, for callers that look at each value of a step.

#pragma once

#include <cstdint>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Replaces each `scan` by copies of its body, one for each iteration, which keep the sources of its nodes: the meaning
// of the graph stays. Values are scanned by slices, and stacked by `concat`. A loop without iterations, or with
// whose copies the graph would have more than `most_nodes` nodes, stays. After an error, the graph is not usable.
absl::Status UnrollLoops(Graph& graph, int64_t most_nodes);

}  // namespace lockstep
