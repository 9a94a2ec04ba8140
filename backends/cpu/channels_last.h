// Loops over values of N,C,spatial that lie channels-last in memory: as N,spatial,C, row-major. A loop compiler knows
// row-major values alone, so the loop's body is rewritten to the shapes that memory has. Called by loop.cc; any thread
// may.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::cpu {

// The body of a loop that does the same as `body` where each value of `shape` lies channels-last; the others stay as
// they are.
//
//   graph @f(%x: f32[8,5,4,4], %b: f32[5]) -> (y: f32[8,5,4,4], s: f32[5]) {
//     %bb = broadcast %b {dims=[1], shape=[8,5,4,4]} : f32[8,5,4,4]
//     %y = add %x, %bb : f32[8,5,4,4]
//     %s = reduce_sum %y {dims=[0,2,3]} : f32[5]
//     return %y, %s
//   }
// becomes
//   graph @f(%x: f32[8,4,4,5], %b: f32[5]) -> (y: f32[8,4,4,5], s: f32[5]) {
//     %bb = broadcast %b {dims=[1], shape=[8,5,4,4]} : f32[8,5,4,4]
//     %bt = transpose %bb {permutation=[0,2,3,1]} : f32[8,4,4,5]
//     %y = add %x, %bt : f32[8,4,4,5]
//     %s = reduce_sum %y {dims=[0,1,2]} : f32[5]
//     return %y, %s
//   }
// Requires a shape of at least 3 dimensions. Unimplemented where an op that is neither elementwise nor a reduction
// reads or makes a value of `shape`, unless it is kRematerialised, and where a reduction would leave its dimensions
// in another order.
absl::StatusOr<Graph> ChannelsLastBody(const Graph& body, const Shape& shape);

}  // namespace lockstep::cpu
