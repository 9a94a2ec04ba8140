// Replaces nodes for which the target has no kernel by their decompositions, until all nodes are supported.
//
//   %w1 = sgd %w, %g {learning_rate=0.1} : f32[4]     ==>     %0 = constant {value=dense<f32[]: 0.1>} : f32[]
//                                                             %1 = broadcast %0 {dims=[], shape=[4]} : f32[4]
//                                                             %2 = mul %1, %g : f32[4]
//                                                             %w1 = sub %w, %2 : f32[4]
//
// A sum of products in 16 bits whose result is f32 (`wide_result`) is computed from operands that are converted to f32,
// if the target has no kernel for it.
//
// An op that is neither supported nor decomposable is an error. It names the op, its source, the types of its operands
// and, if the op came from a decomposition, the decomposed node of the program.

#pragma once

#include <functional>

#include "passes/pass.h"

namespace lockstep::passes {

Pass Legalize(std::function<bool(const Node&)> supports);

}  // namespace lockstep::passes
