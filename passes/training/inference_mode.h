// Removes ops that only matter in training. A `dropout` that training-mode has not replaced by random draws becomes its
// operand. A `stop_gradient` becomes its operand too; this must not happen before gradients are added.
//
//   graph @g(%x: f32[8,3], %p: f32[]) -> (y: f32[8,3]) {
//     %d, %mask = dropout %x, %p : f32[8,3], bool[8,3]
//     %y = exp %d : f32[8,3]
//     return %y
//   }
// becomes
//   graph @g(%x: f32[8,3], %p: f32[]) -> (y: f32[8,3]) {
//     %y = exp %x : f32[8,3]
//     return %y
//   }
// If the mask is used, it becomes a constant of true. Bodies of loops are included. Batch normalisation in inference is
// a separate op, batch_norm_inference, and stays.

#pragma once

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

Pass InferenceMode();

// Removes dropouts only, for a training step whose gradients are not added yet. Returns true if there were any.
absl::StatusOr<bool> RemoveDropouts(Graph& graph);

// Returns `node` if it is a dropout, else the first dropout in its body, at any depth; null if there is none.
const Node* FindDropout(const Node& node);

}  // namespace lockstep::passes
