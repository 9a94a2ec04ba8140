// What a placed step costs a rank, by a model of the machine: seconds of kernels, seconds of collectives, and bytes.
// For the search of placements (plan_search.h), which compares plans with it. Any thread.
//
// A kernel takes the longer of its operations and its bytes of memory, of both the rank's share: where an operand or a
// result is split along an axis, the ranks of the axis share the work. What moves elements or generates them is fused
// into what reads it, and takes nothing; a loop of elements stores its results. A collective takes a latency, and time
// for its bytes: those of the whole value along its axis for an all_reduce, half of them for what gathers or scatters.

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
  double operations = 1;                                   // of a rank in a second
  double bandwidth = 1;                                    // bytes that a rank's kernels read and write in a second
  std::map<std::string, AxisCost, std::less<>> axes = {};  // of those that are not there, collectives take nothing
};

struct PlanCosts {
  double compute = 0, communication = 0;  // seconds of a step, one after the other
  int64_t states = 0;                     // bytes of a rank: weights and what optimizers keep
  int64_t gradients = 0;                  // of what optimizers are given
  int64_t activations = 0;                // of what the forward half computes and the backward half reads

  double seconds() const { return compute + communication; }
  int64_t bytes() const { return states + gradients + activations; }
};

// Bytes that a rank holds of a value of the global type.
int64_t LocalBytes(const TensorType& type, const PlacementMap& placements, const Mesh& mesh);

// Seconds of a node whose operands and results are so placed; of a collective, what it takes along its axis.
double NodeSeconds(const Node& node, std::span<const PlacementMap> operands, std::span<const PlacementMap> results,
                   const Mesh& mesh, const PlanMachine& machine);

// Seconds of a collective, an all_reduce or half of one, of a value of which a rank has so many bytes when it is whole
// along the axis.
double CollectiveSeconds(bool is_all_reduce, int64_t bytes, const std::string& axis, const PlanMachine& machine);

// The forward half of a training step: what its result `loss` depends on. Where there is none, what any result that is
// no state's next value depends on. (A norm of gradients is a result, too.)
std::unordered_set<const Node*> ForwardNodes(const Graph& graph);

// Whether a value is memory that has to be kept: no view or copy of another, and nothing that is made where it is read.
bool IsStored(const Value& value);

// Of a placed graph, or one without a mesh.
PlanCosts CostsOf(const Graph& graph, const PlanMachine& machine);

}  // namespace lockstep::passes
