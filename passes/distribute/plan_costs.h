// The cost of a placed step for one rank, by a model of the machine: seconds of kernels, seconds of collectives, and
// bytes. The search of placements (plan_search.h) compares plans with it. Any thread.
//
// A kernel takes the time of its operations or of its memory traffic, whichever is longer, each for the rank's share:
// if an operand or a result is split along an axis, the ranks of the axis share the work. Ops that move or generate
// elements are fused into their readers and take no time. An elementwise op takes the time to store its results. A
// collective takes a latency plus the time of its bytes: those of the value that is whole along its axis for an
// all_reduce, and half of them for a collective that gathers or scatters.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_set>

#include "core/graph.h"
#include "core/placement.h"

namespace lockstep::passes {

// An all_reduce of n bytes along an axis takes latency + n * seconds_per_byte.
struct AxisCost {
  double latency = 0, seconds_per_byte = 0;
};

struct PlanMachine {
  double operations = 1;                                   // operations of a rank in a second
  double bandwidth = 1;                                    // bytes that a rank's kernels read and write in a second
  std::map<std::string, AxisCost, std::less<>> axes = {};  // along an axis that is missing, collectives are free
};

struct PlanCosts {
  double compute = 0, communication = 0;  // seconds of a step; the two do not overlap
  int64_t states = 0;                     // bytes of a rank: weights and optimizer states
  int64_t gradients = 0;                  // bytes of the gradients that optimizers take
  int64_t activations = 0;                // bytes of values of the forward half that the backward half reads

  double seconds() const { return compute + communication; }
  int64_t bytes() const { return states + gradients + activations; }
};

// Returns the bytes of the part that one rank holds of a value of global type `type`.
int64_t LocalBytes(const TensorType& type, const PlacementMap& placements, const Mesh& mesh);

// Returns the seconds of a node with these placements of its operands and results; of a collective, those along its
// axis.
double NodeSeconds(const Node& node, std::span<const PlacementMap> operands, std::span<const PlacementMap> results,
                   const Mesh& mesh, const PlanMachine& machine);

// Returns the seconds of a collective: an all_reduce, or one that takes half of its bytes' time. `bytes` are those of a
// rank's value when it is whole along the axis.
double CollectiveSeconds(bool is_all_reduce, int64_t bytes, const std::string& axis, const PlanMachine& machine);

// Returns the forward half of a training step: the nodes that its result `loss` depends on. If there is no such result,
// returns the nodes that any result depends on, except next values of states. (Other results, such as a norm of
// gradients, are not counted if there is a loss.)
std::unordered_set<const Node*> ForwardNodes(const Graph& graph);

// Returns true if a value is stored in memory: it is not an input, nor a view or a copy of another value, nor computed
// where it is read.
bool IsStored(const Value& value);

// Returns the costs of a placed graph, or of one without a mesh.
PlanCosts CostsOf(const Graph& graph, const PlanMachine& machine);

}  // namespace lockstep::passes
