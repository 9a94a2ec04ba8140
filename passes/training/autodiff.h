// Derives gradients by reverse accumulation over the ops' vector-Jacobian products.
//
//   graph @f(%x: f32[2], %w: f32[2]) -> (loss: f32[]) {
//     %0 = mul %x, %w : f32[2]
//     %1 = reduce_sum %0 {dims=[0]} : f32[]
//     return %1
//   }
// becomes, with of="loss" and wrt={"w"},
//   graph @f(%x: f32[2], %w: f32[2]) -> (loss: f32[], grad/w: f32[2]) {
//     ... as before ...
//     %2 = constant {value=dense<f32[]: 1.0>} : f32[]
//     %3 = broadcast %2 {dims=[], shape=[2]} : f32[2]
//     %4 = mul %3, %x : f32[2]
//     return %1, %4
//   }
//
// Gradients flow through values of float dtypes only, not through integers or bools. An op on the path without a
// gradient is an error that names the op, its source and the reason. The gradient of a step function (kSteps: floor,
// sign) is zero, and other paths count: x - floor(x) has the gradient 1. A value that `of` depends on only through a
// step function is an error that names the function, not a silent zero.

#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace lockstep::passes {

// Appends nodes that compute the gradient of the float scalar `of` with respect to each of `wrt` (values of float
// dtypes). The i-th returned value has the type of wrt[i], or is null if `of` does not depend on it through floats. If
// `factor`, a scalar of the dtype of `of`, is not null, all gradients are multiplied by it.
absl::StatusOr<std::vector<Value>> AddGradients(Graph& graph, Value of, const std::vector<Value>& wrt,
                                                Value factor = {});

// Returns the pass that adds a result grad/<name> for each input named in `wrt` (all float states if empty). It fails
// if the result `of` does not depend on one of them.
Pass Autodiff(std::string of, std::vector<std::string> wrt = {});

}  // namespace lockstep::passes
