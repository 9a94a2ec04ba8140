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
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

using InputSplits = std::map<std::string, std::map<std::string, int64_t>>;  // by name and axis: the dimension

// The same as users say it: names of inputs and states or patterns as the shell knows them ("fc*.weight"), in order,
// each with the axes that it is split along and the dimension; none says that it is replicated.
using PlacementChoices = std::vector<std::pair<std::string, std::map<std::string, int64_t>>>;

// What the choices say of each input and state: for each the first counts that is its name or matches it, but that
// patterns say nothing of what an optimizer keeps, which goes with its state. An error if one is no name of an input or
// state, and matches none, or if those before it leave it nothing, though it says something else.
absl::StatusOr<InputSplits> SplitsOf(const Graph& graph, const PlacementChoices& choices);

// Names of the states that a training step keeps for `state`: what its optimizer does, and its average.
std::vector<std::string> KeptFor(const Graph& graph, const Input& state);

// The pass: what SplitInputs does with what the choices say, for ranks of `mesh`.
Pass SplitInputs(PlacementChoices choices, Mesh mesh);

// For a graph that is to be distributed over `mesh`, and is not yet. An error names the input and the axis: an input
// or an axis that does not exist, a dimension that it does not have or that the ranks cannot share evenly.
absl::Status SplitInputs(Graph& graph, const InputSplits& splits, const Mesh& mesh);

// Splits by which the ranks along `axis` share what optimizers keep for states of which each has the whole: momenta,
// averages. Each rank then updates a slice of such a state, and the slices are gathered: the first stage of ZeRO
// (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020). Along the first
// dimension of the state that the ranks can share evenly, and that is not split along another axis; for one that has
// none, nothing is shared. Not of what is shared along the axis already. `graph` and `mesh` as for SplitInputs.
InputSplits SplitsOfOptimizers(const Graph& graph, const Mesh& mesh, const std::string& axis);

// The pass: splits so along the axis `data` of the mesh; nothing if that is empty. A graph that is distributed already
// passes as it is if ranks share some state in it or its optimizer keeps none, and is an error otherwise.
Pass ShardOptimizers(Mesh mesh);

}  // namespace lockstep::passes
