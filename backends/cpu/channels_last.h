// Loops over values of N,C,spatial that are channels-last in memory, as row-major N,spatial,C. The loop compiler
// supports only row-major values, so the loop's body is rewritten to the shapes in memory. Called by loop.cc; any
// thread may call it.

#pragma once

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::cpu {

// Returns the body of a loop that computes the same as `body` if each value of `shape` is channels-last; other values
// do not change.
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
// Requires a shape of at least 3 dimensions. Returns Unimplemented if an op that is neither elementwise nor a reduction
// reads or makes a value of `shape`, unless it is kRematerialised, or if a reduction would change the order of its
// result's dimensions.
absl::StatusOr<Graph> ChannelsLastBody(const Graph& body, const Shape& shape);

}  // namespace lockstep::cpu
