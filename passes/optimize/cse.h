// Merges nodes that compute the same: equal op, attributes and operands, where the operands of a commutative op may
// stand in either order. The first node stays, with its names and its source. Collectives are left alone: which
// transfers a program makes is the business of the passes about them. What is equal in all iterations of a loop goes
// before it (hoist_invariants.h).
//
//   %a = add %x, %y : f32[2]          %a = add %x, %y : f32[2]
//   %b = add %y, %x : f32[2]    ==>   %c = mul %a, %a : f32[2]
//   %c = mul %a, %b : f32[2]

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass Cse();

}  // namespace lockstep::passes
