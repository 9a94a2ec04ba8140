// Merges nodes that compute the same: equal op, attributes and operands; the operands of a commutative op may be in
// either order. The first node stays, with its names and its source. Collectives are left alone: other passes decide
// which transfers a program makes. Nodes that compute the same in all iterations of a loop are moved before it
// (hoist_invariants.h).
//
//   %a = add %x, %y : f32[2]          %a = add %x, %y : f32[2]
//   %b = add %y, %x : f32[2]    ==>   %c = mul %a, %a : f32[2]
//   %c = mul %a, %b : f32[2]

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass Cse();

}  // namespace lockstep::passes
