// Removes nodes whose results are not used. Collectives are removed too: all ranks run the same graph, so all of them
// remove the same ones. Inputs stay, since callers give them.
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

// Removes dead nodes, but not inside of loops. For passes that leave dead nodes behind. Returns true if it removed any.
bool RemoveDeadNodes(Graph& graph);

// Removes the dead nodes among `nodes` and the nodes that only these used. Requires `nodes` in the order of the graph.
// Its time does not depend on the size of the graph.
void RemoveDeadNodesAmong(Graph& graph, const std::vector<Node*>& nodes);

}  // namespace lockstep::passes
