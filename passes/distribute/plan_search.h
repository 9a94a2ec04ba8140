// Searches for placements of a step's states along a mesh axis. A plan is one placement for each state. The search
// returns the plan whose step takes the fewest seconds by the model of plan_costs.h and whose bytes are within a limit.
//
// The cost of a plan follows from the ops' placement rules, which are applied as the distribute pass does. FlexFlow
// (Jia, Zaharia and Aiken, "Beyond data and model parallelism for deep neural networks", 2019), Tofu (Wang, Huang and
// Li, "Supporting very large models using automatic dataflow graph partitioning", 2019) and Alpa (Zheng et al., 2022)
// choose a placement for each node by such costs. This search makes one decision for each state, and all else follows.
//
// The step is cut into segments (plan_program.h), and dynamic programming goes through them, as in Tofu and Unity
// (Unger et al., 2022): two plans that leave the values at a cut with the same placements are equal from there on. The
// forward and the backward halves of a segment are counted together. The search is exact as long as at most `width`
// different sets of placements occur at each cut, as in chains of layers. If there are more, it keeps the cheapest
// (beam search). With a memory limit, up to `width` plans that are slower but smaller are kept at a cut.
//
// The quickest plans are then distributed, and the costs of the resulting programs decide. Splits of biases that make
// the best plan slower are removed from it.
//
// Axes are searched one after the other, in the order of the mesh. The result depends only on the arguments, not on the
// machine.

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
  std::optional<int64_t> memory_limit = {};  // bytes for each rank
  size_t width = 128;
  size_t runners_up = 3;
};

// A plan with its costs.
struct PlacementPlan {
  InputSplits splits;  // of states along the searched axes; a state that is missing is replicated
  PlanCosts costs;     // of the program that distribute makes with it
};

struct PlanSearch {
  PlacementPlan best;
  std::vector<PlacementPlan> runners_up;  // the next best, in order
  PlacementPlan replicated;               // the plan that replicates every state that may be placed
  bool is_exact = true;                   // false if the search dropped some plans
};

// Searches a plan for a step that will be distributed over `mesh`. Requires that `step` has no mesh yet. Existing
// placements of inputs and states are kept, and are not part of `splits`. The data axis, and axes along which a data
// input is split already, are not searched. Returns an error if no axis of several ranks is left to search, if no state
// can be shared, or if no plan is within the memory limit; the last one gives the bytes of the smallest plan found.
absl::StatusOr<PlanSearch> SearchPlan(const Graph& step, const Mesh& mesh, const PlanOptions& options);

}  // namespace lockstep::passes
