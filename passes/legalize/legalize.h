// Replaces nodes for which the target has no kernel by their decompositions, until all nodes are supported.
//
//   %w1 = sgd %w, %g {learning_rate=0.1} : f32[4]     ==>     %0 = constant {value=dense<f32[]: 0.1>} : f32[]
//                                                             %1 = broadcast %0 {dims=[], shape=[4]} : f32[4]
//                                                             %2 = mul %1, %g : f32[4]
//                                                             %w1 = sub %w, %2 : f32[4]
//
// A sum of products in 16 bits whose result is f32 (`wide_result`), and for which the target has no kernel, is computed
// from operands that are converted to f32, or, if the target says so, rounded to 16 bits and then converted:
//
//   %dw = convolution_grad_filter %x, %dy {wide_result=true, ...} : f32[6,2,3,3]
//       ==>     %0 = convolution_grad_filter %x, %dy {...} : bf16[6,2,3,3]
//               %dw = convert %0 {dtype=f32} : f32[6,2,3,3]
//
// An op that is neither supported nor decomposable is an error. It names the op, its source, the types of its operands
// and, if the op came from a decomposition, the decomposed node of the program.

#pragma once

#include <functional>

#include "passes/pass.h"

namespace lockstep::passes {

// `rounds_sum` is called for sums with a wide result that are not supported. Empty: none is rounded.
Pass Legalize(std::function<bool(const Node&)> supports, std::function<bool(const Node&)> rounds_sum = {});

}  // namespace lockstep::passes
