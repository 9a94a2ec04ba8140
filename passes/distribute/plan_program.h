// A step as the search of placements sees it (plan_search.h): its values numbered, its states that may be placed, and
// the step cut into segments, one for each of these. A segment is what follows a state until the next is used: the
// nodes of the forward half that need it and no later one, and the nodes of the backward half that belong to these. A
// plan is then a path through the segments, forth and back. Borrows the graph.
//
// What has no dimension is left out of the cuts: losses, norms and counts are taken to be whole.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/placement.h"

namespace lockstep::passes {

// A state that may be placed, and what an optimizer keeps for it, which goes with it.
struct PlanDecision {
  int value = 0;
  std::vector<Placement> candidates;  // along the axis; the first is replicated
  struct Kept {
    int value = 0;
    std::vector<Placement> placements;  // one for each candidate
  };
  std::vector<Kept> kept;
};

// A node, or a result of the graph, whose value is to be where it has to end.
struct PlanItem {
  const Node* node = nullptr;  // null of a result
  std::vector<int> operands, results;
  int state = -1;  // of the result that is a state's next value: that state
  bool is_forward = false;
};

struct PlanSegment {
  std::vector<PlanItem> forward, backward;  // each in order
  std::vector<int> stored;                  // values of the forward half that the backward half reads
  // What the segments from this one on are given by those before: their values that are still to be used. And what they
  // give back: values that the backward halves of those before use, and that these may have made, or moved.
  std::vector<int> given, returned;
};

struct PlanProgram {
  std::vector<Value> values;
  std::vector<PlanDecision> decisions;  // one for each segment
  std::vector<PlanSegment> segments;
  std::vector<int> inputs;  // those that are not decided
};

// For each state what an optimizer keeps for it, with the dimensions that may follow: see SplitInputs.
using KeptStates = std::map<std::string, std::vector<std::string>>;

// `graph`: placed along the axes of its mesh, or without one; `mesh`: these axes and the one that is to be placed
// along. States that are split along it already stay so. `kept` of a graph whose names are the same.
PlanProgram MakePlanProgram(const Graph& graph, const Mesh& mesh, const std::string& axis, const KeptStates& kept);

}  // namespace lockstep::passes
