// Mixed precision: matrix products, convolutions and attention compute in 16 bits, ops that need the range or the
// digits of f32 stay in f32, and the ops between them follow their operands. MakeTrainStep calls it on the model before
// it adds losses and gradients, so autodiff makes the backward pass in the same precisions. One thread at a time may
// use a Graph.
//
//   graph @mlp(%x: f32[128,784] split(0), state %w: f32[784,10], state %b: f32[10]) -> (logits: f32[128,10] split(0)) {
//     %z = matmul %x, %w : f32[128,10]
//     %c = broadcast %b {dims=[1], shape=[128,10]} : f32[128,10]
//     %y = add %z, %c : f32[128,10]
//     return %y
//   }
// becomes, with bf16,
//     %x.bf16 = convert %x {dtype=bf16} : bf16[128,784]
//     %w.bf16 = convert %w {dtype=bf16} : bf16[784,10]
//     %z = matmul %x.bf16, %w.bf16 : bf16[128,10]
//     %c = broadcast %b {dims=[1], shape=[128,10]} : f32[128,10]
//     %z.f32 = convert %z {dtype=f32} : f32[128,10]
//     %y = add %z.f32, %c : f32[128,10]
//     %y.bf16 = convert %y {dtype=bf16} : bf16[128,10]
//     %y.f32 = convert %y.bf16 {dtype=f32} : f32[128,10]
//     return %y.f32
// States keep their dtypes, as they are the weights that the optimizer updates. Each is converted once in a step for
// all its users. Its gradient arrives in f32, through that conversion. Results keep their dtypes.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Lowers f32 computations of the model to `low`, f16 or bf16, by the precision rules of the ops (PrecisionRule in
// core/op_traits.h). Ops with other float dtypes and conversions in the model stay as they are written.
//
// An op that follows has the precision of its widest operand. Operands that depend on states, settings and constants
// only do not count, except constants out of the range of `low`. An elementwise op with f32 operands that do not count
// computes in f32 and its result is rounded, so that a bias or a factor is not rounded before.
absl::Status LowerPrecision(Graph& graph, DType low);

// Removes the rounding to 16 bits from gradients of weights. They arrive by a conversion to f32, perhaps followed by
// ops that move elements. If the converted value is a product (`wide_result`) or a sum of products, it is computed in
// f32 instead, so ranks add up their terms in f32 too. Replaces entries of `gradients` whose values were replaced.
absl::Status KeepSumsWide(Graph& graph, std::vector<Value>& gradients);

}  // namespace lockstep::passes
