// Takes out what does something in training alone: a `dropout` that training-mode has not turned into draws is its
// operand, and so is a `stop_gradient` once there are gradients.
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
// A mask that is used is true everywhere. Bodies of loops are looked at too. Batch normalisation that is not trained is
// an op of its own, batch_norm_inference, and stays.

#pragma once

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"

namespace lockstep::passes {

Pass InferenceMode();

// The part of it that a training step, whose gradients are still to come, can do: dropouts alone. Whether there were.
absl::StatusOr<bool> TakeOutDropouts(Graph& graph);

// `node` if it is a dropout, else the first in its body, at any depth; null if there is none.
const Node* FindDropout(const Node& node);

}  // namespace lockstep::passes
