// Computes nodes in f32 if the target has no fast kernel for them in 16 bits. The conversions are fused into
// neighbouring loops. For example, on a processor without bf16 instructions, values in memory have 16 bits and products
// have 32.
//
//   %z = matmul %x, %w : bf16[8,4]     ==>     %x.f32 = convert %x {dtype=f32} : f32[8,3]
//                                              %w.f32 = convert %w {dtype=f32} : f32[3,4]
//                                              %z.f32 = matmul %x.f32, %w.f32 : f32[8,4]
//                                              %z = convert %z.f32 {dtype=bf16} : bf16[8,4]
//
// Runs before `distribute`: partial sums are then f32, and are rounded once the sum is complete.

#pragma once

#include <functional>

#include "passes/pass.h"

namespace lockstep::passes {

// Widens nodes with f16 or bf16 operands for which `prefers_f32` returns true, including those in bodies of loops. An
// empty `prefers_f32` widens none.
Pass WidenHalves(std::function<bool(const Node&)> prefers_f32);

}  // namespace lockstep::passes
