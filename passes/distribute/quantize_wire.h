// Lets gradients travel in a quarter of their bytes: as 8-bit integers, with a scale for each block of 256
// (core/ops/int8_wire.h). What rounding takes from a step is kept, and added to the gradient of the next one before
// that is rounded (error feedback: Seide et al., "1-Bit Stochastic Gradient Descent", 2014; Karimireddy et al., "Error
// Feedback Fixes SignSGD", 2019). So what all steps together have applied, and what is kept, is the sum of the
// gradients. ChooseWire (wire.h) says of which all_reduces this is.
//
// Of n ranks, for a gradient of a trained state %w, here of 3 x 4 elements:
//
//   %grad/w.1 = all_reduce %grad/w {axis=data, kind=sum, wire="int8"} : f32[3,4]
// becomes, with a state that holds what each rank still owes,
//   state %w/residual/data: f32[n,3,4] split(0)
//   %part = parts %grad/w : f32[n,3,4] split(0)                 what each rank has
//   %v = add %part, %w/residual/data                            as blocks: f32[n,n,blocks,256] split(0)
//   %scale, %codes = …                                          f32[n,n,blocks], i8[n,n,blocks,256] split(0)
//   all_to_all of both {split_dim=1, concat_dim=0}              each rank gets its share of the blocks from all
//   %sum = reduce_sum (codes * scale) {dims=[0]}                added in f32: f32[n,blocks,256] split(0)
//   %scale2, %codes2 = …                                        the sum is rounded as well
//   all_gather of both {dim=0}
//   %grad/w.1 = codes2 * scale2                                 the same on all ranks, bit for bit
//   %w/residual/data.next = %v - codes * scale, and of the rank's own share %sum - codes2 * scale2
//
// All of a bucket travels together, each tensor in blocks of its own. A block that is not finite leaves no residual, as
// its difference would never be a number again. Where a step is undone, as its gradients are not finite
// (loss_scaling.h), so are the residuals: state by state, as the condition says under which %w has its next value.
//
// An all_reduce whose operand is no gradient of a state that the graph updates has no residual.

#pragma once

#include <string_view>

#include "core/graph.h"
#include "passes/pass.h"

namespace lockstep::passes {

Pass QuantizeWire();

// The state of which a value of this name is the gradient, or the sum that becomes it, by the names that train-step
// gives; null if there is none, or the graph does not update it.
const Input* StateOfGradient(const Graph& graph, std::string_view name);

}  // namespace lockstep::passes
