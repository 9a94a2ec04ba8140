// Evaluates nodes whose operands are all constants, by the ops' reference meanings.
//
//   %a = constant {value=dense<f32[2]: 1.0, 2.0>} : f32[2]      %b = constant {value=dense<f32[2]: 1.0, 4.0>} : f32[2]
//   %b = mul %a, %a : f32[2]                              ==>
//
// A tensor of equal elements, of any size, becomes a scalar constant that is broadcast. Other results are folded up to
// `max_elements`. A node whose evaluation fails (a division by zero) stays, and fails when the program runs.

#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace lockstep::passes {

struct FoldOptions {
  int64_t max_elements = 1024;  // the limit for each result
};

Pass FoldConstants(FoldOptions options = {});

}  // namespace lockstep::passes
