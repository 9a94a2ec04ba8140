// One copy of weights for the ranks of a host. Where ranks share what optimizers keep (SplitsOfOptimizers in
// passes/distribute/split_inputs.h) each updates a slice of a weight, and the slices are gathered. If all ranks read
// the weight in the same memory, and its slices lie one after the other, nothing has to move: each rank writes its
// slice in its place.
//
//   graph @step(…, state %w: f32[784,10]) {            graph @step(…, state %w: f32[784,10],
//     %s = shard %w {axis=data, dim=0}                             state %w.part: f32[196,10] split(0)) {
//     %next = sgd %s, %g : f32[196,10]          ==>      %next = sgd %w.part, %g : f32[196,10]
//     %all = all_gather %next {axis=data, dim=0}         return %next   // of %w.part
//     return %all   // of %w
//
// A rank's part is a state by another name for some of the whole's bytes. States that no step updates, such as frozen
// weights, or all in an evaluation, are shared too; others stay each rank's own: what ranks cannot share evenly along
// the outermost dimension, and what all of them update alike.
//
// What makes it safe is the order of steps, which all ranks have in common. A rank writes its part behind a collective
// that all have started after they read the whole for the last time, and a run ends behind one that all have started
// after they wrote. Gradients' collectives are mostly where the first is needed; where none is, a barrier is put in.
// Rule O7 of the certificate proves it (certificate.h), and trusts nothing said here.

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
  std::string axis;  // along which ranks share it
};

// Rewrites a rank's program, after all passes, and says which states the ranks along `axis` are to share. None if there
// is no such axis, or one rank along it.
absl::StatusOr<std::vector<StateToShare>> ShareStates(Graph& graph, const std::string& axis);

// Says so in the program that was made of the graph.
void MarkShared(Program& program, const std::vector<StateToShare>& states);

// Puts in the barriers that are missing, once nothing moves instructions any more. A barrier starts as early as it can
// and is waited for as late, so that ranks seldom wait in it.
void GuardSharedStates(Program& program);

}  // namespace lockstep
