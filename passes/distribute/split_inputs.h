// Sets the placements of inputs and states before `distribute`: the dimension of each that is split along an axis of
// the mesh. The placements of all other values follow from the ops' placement rules.
//
//   graph @step(%x: f32[128,784] split(0), state %w: f32[784,10], state %w/momentum: f32[784,10]) -> …
// becomes with {w: {model: 1}}
//   graph @step(%x: f32[128,784] split(0), state %w: f32[784,10] split(1, model),
//               state %w/momentum: f32[784,10] split(1, model)) -> …
//
// The states that an optimizer keeps for a state are split like it, unless they are named too.

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

using InputSplits = std::map<std::string, std::map<std::string, int64_t>>;  // the dimension, by input and axis

// Splits as users give them: names of inputs and states or shell patterns ("fc*.weight"), in order, each with axes and
// the dimension that is split along each. No axes: replicated.
using PlacementChoices = std::vector<std::pair<std::string, std::map<std::string, int64_t>>>;

// Returns the splits of each input and state by the choices. The first choice that is its name or matches it counts.
// Patterns do not match states that an optimizer keeps, since these follow their states. Returns an error if a choice
// neither names nor matches an input or state, or if it differs from the choices before it but these match all that it
// matches.
absl::StatusOr<InputSplits> SplitsOf(const Graph& graph, const PlacementChoices& choices);

// Returns the names of the states that a training step keeps for `state`: its optimizer's states and its average.
std::vector<std::string> StatesOfOptimizerFor(const Graph& graph, const Input& state);

// Returns the pass that calls SplitInputs with the splits of the choices, for ranks of `mesh`.
Pass SplitInputs(PlacementChoices choices, Mesh mesh);

// Sets the placements of a graph that will be distributed over `mesh`. Requires that it has no mesh yet. Returns an
// error that names the input and the axis if one of them does not exist, or if the input does not have the dimension or
// the ranks cannot share it evenly.
absl::Status SplitInputs(Graph& graph, const InputSplits& splits, const Mesh& mesh);

// Returns splits along `axis` of the optimizer states and averages of replicated states. Each rank then updates a slice
// of such a state, and the slices are gathered: the first stage of ZeRO (Rajbhandari et al., "ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", 2020). The split is along the first dimension of the state
// that the ranks can share evenly and that is not split along another axis; if there is none, nothing is split. States
// that are split along the axis already are left out. `graph` and `mesh` as for SplitInputs.
InputSplits SplitsOfOptimizers(const Graph& graph, const Mesh& mesh, const std::string& axis);

// Returns the pass that applies SplitsOfOptimizers along the axis `data` of the mesh; it does nothing if the mesh is
// empty. A graph that is distributed already stays unchanged if some state in it is split along `data` or its
// optimizers keep no states, and is an error otherwise.
Pass ShardOptimizers(Mesh mesh);

}  // namespace lockstep::passes
