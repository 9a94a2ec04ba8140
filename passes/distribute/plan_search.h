// Searches how the ranks along an axis share a step's states: of all plans, placements of states, the one whose step
// takes the least seconds by the model of plan_costs.h, and whose bytes are within a limit.
//
// What a plan costs follows by the ops' placement rules, as the distribute pass follows them; the choice of a placement
// for each node, given what such rules cost, is that of FlexFlow (Jia, Zaharia and Aiken, "Beyond data and model
// parallelism for deep neural networks", 2019), Tofu (Wang, Huang and Li, "Supporting very large models using automatic
// dataflow graph partitioning", 2019) and Alpa (Zheng et al., 2022), but with one decision for each state, from which
// the rest follows. The step is cut into segments (plan_program.h), and dynamic programming goes through them as
// Tofu's and Unity's (Unger et al., 2022) does: two plans that leave the values at a cut in the same places are one
// from there on, and the forward and the backward halves of a segment are counted together. That is exact as long as no
// more than `width` ways to be at a cut are met, as in chains of layers; where there are more, the cheapest are kept, a
// beam search. With a limit of memory, at a cut plans stay that are slower and smaller, of which up to `width` are
// kept.
//
// The quickest are then distributed, and what those programs cost decides; splits of biases that the best is quicker
// without are left out of it.
//
// One axis after the other, in the order of the mesh. The same on every machine, for the same arguments.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "passes/distribute/plan_costs.h"
#include "passes/distribute/split_inputs.h"

namespace lockstep::passes {

struct PlanOptions {
  PlanMachine machine;
  std::optional<int64_t> memory_limit = {};  // bytes of a rank
  size_t width = 128;
  size_t runners_up = 3;
};

// A plan that the search made, with what it costs.
struct PlacementPlan {
  InputSplits splits;  // of states along the axes that were searched; a state that is not there is replicated
  PlanCosts costs;     // of the program that distribute makes of it
};

struct PlanSearch {
  PlacementPlan best;
  std::vector<PlacementPlan> runners_up;  // the next best, in order
  PlacementPlan replicated;               // every state that may be placed whole on each rank
  bool is_exact = true;                   // no way was left out
};

// For a step that is to be distributed over `mesh`, and is not yet. Placements of inputs and states that are there
// hold, and are of `splits` no part. Axes along which something is split already, such as the data axis, are not
// searched. An error if no axis of several ranks is left to be searched, if no state can be shared, or if no plan is
// within the limit: it names the smallest that was found.
absl::StatusOr<PlanSearch> SearchPlan(const Graph& step, const Mesh& mesh, const PlanOptions& options);

}  // namespace lockstep::passes
