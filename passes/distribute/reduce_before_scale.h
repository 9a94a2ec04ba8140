// Moves an all_reduce before the scaling of its operand, if the scale itself depends on a collective, or if the
// unscaled value is reduced anyway:
//
//   %n = all_reduce %count {axis=data, kind=sum} : f32[]                // replicated from here on
//   %b = broadcast %n {dims=[], shape=[4]} : f32[4]
//   %y = div %x, %b : f32[4]
//   %z = all_reduce %y {axis=data, kind=sum} : f32[4]
// becomes
//   %n = all_reduce %count {axis=data, kind=sum} : f32[]
//   %z.sum = all_reduce %x {axis=data, kind=sum} : f32[4]
//   %b = broadcast %n {dims=[], shape=[4]} : f32[4]
//   %z = div %z.sum, %b : f32[4]
//
// Then neither all_reduce waits for the other, and both can share a bucket. Applies to products and quotients whose
// factor or divisor is replicated along the axis. If %x is reduced anyway, two equal all_reduces result, of which
// simplify keeps one.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass ReduceBeforeScale();

}  // namespace lockstep::passes
