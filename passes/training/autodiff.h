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
// A gradient flows through values of float dtypes alone: what an integer or a bool depends on gets none through it. An
// op on the way that has no gradient is an error that names the op, its source and its reason. Through a step function
// (kSteps: floor, sign) the gradient is zero, and what else a value does counts: x - floor(x) has the gradient 1. A
// value that has no other way to `of` is an error that names the step function: never a silent zero.

#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace lockstep::passes {

// Appends nodes that compute the gradient of the float scalar `of` with respect to each of `wrt` (values of float
// dtypes). The i-th value is of the type of wrt[i], or null if `of` does not depend on it through floats. All of them
// are times `factor`, a scalar of the dtype of `of`, if it is not null.
absl::StatusOr<std::vector<Value>> AddGradients(Graph& graph, Value of, const std::vector<Value>& wrt,
                                                Value factor = {});

// Adds a result grad/<name> for each input named in `wrt` (all float states if empty). An input that the result `of`
// does not depend on is an error.
Pass Autodiff(std::string of, std::vector<std::string> wrt = {});

}  // namespace lockstep::passes
