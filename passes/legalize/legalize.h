// Replaces nodes that the target has no kernel for by their decomposition into simpler ops, until all are supported.
//
//   %w1 = sgd %w, %g {learning_rate=0.1} : f32[4]     ==>     %0 = constant {value=dense<f32[]: 0.1>} : f32[]
//                                                             %1 = broadcast %0 {dims=[], shape=[4]} : f32[4]
//                                                             %2 = mul %1, %g : f32[4]
//                                                             %w1 = sub %w, %2 : f32[4]
//
// A sum of products in 16 bits whose result is f32 (`wide_result`), where the target has none such, is one of operands
// that are converted to f32.
//
// An op that is neither supported nor decomposable is an error that names it, its source and the types that it takes,
// and, if it came of a decomposition, the node of the program that was taken apart.

#pragma once

#include <functional>

#include "passes/pass.h"

namespace lockstep::passes {

Pass Legalize(std::function<bool(const Node&)> supports);

}  // namespace lockstep::passes
