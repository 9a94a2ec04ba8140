// Lets the ranks of a host have one copy of weights. If ranks split the optimizer's states (SplitsOfOptimizers in
// passes/distribute/split_inputs.h), each updates a slice of a weight, and the slices are gathered. If all ranks read
// the weight in the same memory and its slices are adjacent there, no data has to move: each rank writes its slice in
// its place.
//
//   graph @step(…, state %w: f32[784,10]) {            graph @step(…, state %w: f32[784,10],
//     %s = shard %w {axis=data, dim=0}                             state %w.part: f32[196,10] split(0)) {
//     %next = sgd %s, %g : f32[196,10]          ==>      %next = sgd %w.part, %g : f32[196,10]
//     %all = all_gather %next {axis=data, dim=0}         return %next   // of %w.part
//     return %all   // of %w
//
// A rank's part is a separate state whose bytes are part of the whole's. States that no step updates, such as frozen
// weights, or all states in an evaluation, are shared too. Other states are not shared: those that cannot be split
// evenly along the outermost dimension, and those that all ranks update in the same way.
//
// The order of steps, which is the same on all ranks, makes this safe. A rank writes its part after a collective that
// all ranks have started after their last read of the whole, and a run ends after a collective that all ranks have
// started after their writes. The gradients' collectives usually serve as the first one; if there is none, a barrier is
// inserted. Rule O7 of the certificate proves this independently (certificate.h).

#pragma once

#include <string>
#include <vector>

#include "backends/planning/program.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

struct StateToShare {
  std::string name;
  std::string part;  // the name of the rank's part; empty if nothing updates the state
  std::string axis;  // the axis along which ranks share it
};

// Rewrites a rank's program, after all passes, and returns the states that the ranks along `axis` share. Returns none
// if there is no such axis, or only one rank along it.
absl::StatusOr<std::vector<StateToShare>> ShareStates(Graph& graph, const std::string& axis);

// Marks the shared states in the program that was made of the graph.
void MarkShared(Program& program, const std::vector<StateToShare>& states);

// Inserts the missing barriers, once instructions do not move any more. A barrier starts as early and is waited for as
// late as possible, so that ranks seldom wait in it.
void GuardSharedStates(Program& program);

}  // namespace lockstep
