// The form of a step for the search of placements (plan_search.h): its values are numbered, and it is cut into
// segments, one for each state that may be placed. A segment has the nodes of the forward half that need its state and
// no later one, and the nodes of the backward half that belong to these. A plan is then a path through the segments,
// forward and back. Borrows the graph.
//
// Values without dimensions, such as losses, norms and counts, are not part of cuts: they are assumed to be whole.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/placement.h"

namespace lockstep::passes {

// A state that may be placed. The states that its optimizer keeps follow its placement.
struct PlanDecision {
  int value = 0;
  std::vector<Placement> candidates;  // the placements along the axis to choose from; the first is replicated
  struct Kept {
    int value = 0;
    std::vector<Placement> placements;  // one for each candidate
  };
  std::vector<Kept> kept;
};

// A node, or a result of the graph, whose value must be moved to the result's placement.
struct PlanItem {
  const Node* node = nullptr;  // null for a result
  std::vector<int> operands, results;
  int state = -1;  // for a result that is a state's next value: that state
  bool is_forward = false;
};

struct PlanSegment {
  std::vector<PlanItem> forward, backward;  // each in order
  std::vector<int> stored;                  // values of the forward half that the backward half reads
  // `given`: values of earlier segments that this segment or a later one uses. `returned`: values that the backward
  // halves of earlier segments use and that this segment or a later one may have computed or moved.
  std::vector<int> given, returned;
};

struct PlanProgram {
  std::vector<Value> values;
  std::vector<PlanDecision> decisions;  // one for each segment
  std::vector<PlanSegment> segments;
  std::vector<int> inputs;  // the inputs without a decision
};

// For each state, the names of the states that an optimizer keeps for it (StatesOfOptimizerFor in split_inputs.h).
using OptimizerStates = std::map<std::string, std::vector<std::string>>;

// Makes the program of `graph`, which is placed along all axes of its mesh, or has no mesh. `mesh` has these axes and
// then `axis`, along which states are to be placed. States that are split along it already stay so. `kept` may come
// from another graph with the same names.
PlanProgram MakePlanProgram(const Graph& graph, const Mesh& mesh, const std::string& axis, const OptimizerStates& kept);

}  // namespace lockstep::passes
