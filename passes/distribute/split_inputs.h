// Says of inputs and states that the ranks share them, before distribute: which dimension of each is split along
// which axis of the mesh. What this then means for every other value follows by the ops' rules.
//
//   graph @step(%x: f32[128,784] split(0), state %w: f32[784,10], state %w/momentum: f32[784,10]) -> …
// becomes with {w: {model: 1}}
//   graph @step(%x: f32[128,784] split(0), state %w: f32[784,10] split(1, model),
//               state %w/momentum: f32[784,10] split(1, model)) -> …
//
// What an optimizer keeps for a state goes with it, unless something is said of that too.

#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

using InputSplits = std::map<std::string, std::map<std::string, int64_t>>;  // by name and axis: the dimension

// For a graph that is to be distributed over `mesh`, and is not yet. An error names the input and the axis: an input
// or an axis that does not exist, a dimension that it does not have or that the ranks cannot share evenly.
absl::Status SplitInputs(Graph& graph, const InputSplits& splits, const Mesh& mesh);

}  // namespace lockstep::passes
