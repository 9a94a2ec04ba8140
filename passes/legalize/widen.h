// Computes in f32 what the target has no quick kernel for in 16 bits, between conversions that loops around it take in:
// on a processor without instructions for bf16, say, what lies in memory has 16 bits, and products have 32.
//
//   %z = matmul %x, %w : bf16[8,4]     ==>     %x.f32 = convert %x {dtype=f32} : f32[8,3]
//                                              %w.f32 = convert %w {dtype=f32} : f32[3,4]
//                                              %z.f32 = matmul %x.f32, %w.f32 : f32[8,4]
//                                              %z = convert %z.f32 {dtype=bf16} : bf16[8,4]
//
// Before programs are distributed: what ranks have parts of then is a sum in f32, which is rounded when it is whole.

#pragma once

#include <functional>

#include "passes/pass.h"

namespace lockstep::passes {

// Of the nodes that take f16 or bf16, in bodies of loops too, those that `prefers_f32` names. Empty: none.
Pass WidenHalves(std::function<bool(const Node&)> prefers_f32);

}  // namespace lockstep::passes
