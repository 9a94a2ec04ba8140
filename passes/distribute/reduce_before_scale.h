// Reduces before what was computed is scaled, where the scale itself waits for ranks, or where what it scales is
// reduced for somebody else, too:
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
// so that neither all_reduce waits for the other, and both may share a bucket. Of a product or a quotient, where the
// factor, or the divisor, is the same on all ranks of the axis. Where %x is reduced anyway there are two equal
// all_reduces afterwards, of which simplify keeps one.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass ReduceBeforeScale();

}  // namespace lockstep::passes
