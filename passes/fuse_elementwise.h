// Gathers elementwise ops, and the reductions that they feed, into nodes of op `fusion`, which a backend compiles to one loop
// each: what is computed inside does not go through memory.
//
//   %h = add %z, %t : f32[32,10]             ==>    %a = fusion %z, %b {body=graph @fused(%z: f32[32,10], %b: f32[10]) -> (a: f32[32,10]) {
//   %a = tanh %h : f32[32,10]                         %t = broadcast %b {dims=[1], shape=[32, 10]} : f32[32,10]
//   (%t = broadcast %b {dims=[1], …})                 %h = add %z, %t : f32[32,10]
//                                                     %a = tanh %h : f32[32,10]
//                                                     return %a
//                                                   }} : f32[32,10]
//
// A fusion has one domain: the shape of its elementwise ops, which is that of the operands of its reductions, and these reduce
// the same dimensions. A node joins the fusion of one of its users if that makes no cycle, so nothing waits for what it
// could do without, and a value that others need too becomes a further result. Broadcasts, iotas and splat constants are copied
// into each fusion that uses them. Collectives, and the order among them, are not touched.

#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace lockstep::passes {

struct FusionOptions {
  int64_t max_nodes = 64;  // of a body, without what is copied into it
};

Pass FuseElementwise(FusionOptions options = {});

}  // namespace lockstep::passes
