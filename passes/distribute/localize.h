// Replaces the global types of a placed program by the types of each rank's part, which follow from the placements
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
// With shares of rows that are not equal, each rank has the extents of its own share: `localize{rows=96|32,rank=1}`
// makes f32[32,784] of %x, and f32[96,784] for rank 0.
//
// Passes that add nodes by gradients, decompositions or rules run before it: in a local graph no rule places new nodes.

#pragma once

#include "core/local_types.h"
#include "passes/pass.h"

namespace lockstep::passes {

Pass Localize(RowShares shares = {});

}  // namespace lockstep::passes
