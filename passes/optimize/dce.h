// Removes nodes whose results nobody uses. Collectives go like all others: every rank runs the same graph, so every
// rank drops them. Inputs stay, since callers give them.
//
//   graph @f(%x: f32[2]) -> (a: f32[2]) {          graph @f(%x: f32[2]) -> (a: f32[2]) {
//     %a = exp %x : f32[2]                           %a = exp %x : f32[2]
//     %b = neg %a : f32[2]                  ==>      return %a
//     %c = all_reduce %b {…} : f32[2]              }
//     return %a
//   }

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass Dce();

// What it runs, for passes that leave something behind. True if there was something.
bool RemoveDeadNodes(Graph& graph);

// The same of `nodes`, given in their order, and of what only they have used; in time that the others do not matter
// for.
void RemoveDeadNodesAmong(Graph& graph, const std::vector<Node*>& nodes);

}  // namespace lockstep::passes
