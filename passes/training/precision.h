// Mixed precision: products of matrices, convolutions and attention compute in 16 bits, what needs the range or the
// digits of f32 stays in it, and what is between them follows. Called by MakeTrainStep, on the model, before there are
// losses and gradients: autodiff then makes the backward pass in the same precisions. One thread at a time may use a
// Graph.
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
// States stay as they are: they are the weights that the optimizer updates, and each is converted once in a step,
// whoever uses it. Its gradient arrives in f32, through that conversion. Results keep their dtypes.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// Lowers what the model computes in f32 to `low`, f16 or bf16, as the blocks of the ops say (PrecisionRule in
// core/op_traits.h). Ops on anything but f32, and what a model converts itself, stay as they are written.
//
// Which precision an op that follows has: that of its widest operand, where what comes of states and constants alone
// does not count, but for constants that are not finite in 16 bits. With such an operand it is computed in f32, of
// which the result is rounded: a bias or a factor is not rounded before.
absl::Status LowerPrecision(Graph& graph, DType low);

// The gradients of weights, which arrive by a conversion to f32, and perhaps are moved after it, without a rounding to
// 16 bits before it, where they are sums of products (`wide_result`) or what these add up to: ranks then add their
// parts in f32, too. Replaces the gradients by what has their values now.
absl::Status KeepSumsWide(Graph& graph, std::vector<Value>& gradients);

}  // namespace lockstep::passes
