// Gives a placed program the types of what each rank holds. Mechanical: placements say all that is needed
// (core/local_types.h).
//
//   mesh {data=4}
//   graph @f(%x: f32[128,784] split(0), %w: f32[784,10]) -> (z: f32[128,10] split(0)) {
//     %z = matmul %x, %w : f32[128,10] split(0)
//     return %z
//   }
// becomes
//   mesh {data=4}
//   local graph @f(%x: f32[32,784] split(0), %w: f32[784,10]) -> (z: f32[32,10] split(0)) {
//     %z = matmul %x, %w : f32[32,10] split(0)
//     return %z
//   }
//
// Passes that make new nodes with gradients, decompositions or rules come before it: in a local graph no rule places a
// node.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass Localize();

}  // namespace lockstep::passes
