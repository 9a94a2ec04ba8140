// Sends gradients in a quarter of their bytes: as 8-bit integers, with a scale for each block of 256 elements
// (core/ops/int8_wire.h). The rounding error of a step (the residual) is kept and added to the gradient of the next
// step before that is rounded (error feedback: Seide et al., "1-Bit Stochastic Gradient Descent", 2014; Karimireddy et
// al., "Error Feedback Fixes SignSGD", 2019). So the sum of the gradients equals the sum of the applied gradients plus
// the residual. ChooseWire (wire.h) chooses the all_reduces.
//
// For n ranks and a gradient of a trained state %w, here of 3 x 4 elements,
//
//   %grad/w.1 = all_reduce %grad/w {axis=data, kind=sum, wire="int8"} : f32[3,4]
// becomes, with a state that holds the residual of each rank,
//   state %w/residual/data: f32[n,3,4] split(0)
//   %part = parts %grad/w : f32[n,3,4] split(0)                 the term of each rank
//   %v = add %part, %w/residual/data                            as blocks: f32[n,n,blocks,256] split(0)
//   %scale, %codes = …                                          f32[n,n,blocks], i8[n,n,blocks,256] split(0)
//   all_to_all of both {split_dim=1, concat_dim=0}              each rank gets its share of the blocks from all
//   %sum = reduce_sum (codes * scale) {dims=[0]}                added in f32: f32[n,blocks,256] split(0)
//   %scale2, %codes2 = …                                        the sum is rounded as well
//   all_gather of both {dim=0}
//   %grad/w.1 = codes2 * scale2                                 the same on all ranks, bit for bit
//   %w/residual/data.next = %v - codes * scale, and of the rank's own share %sum - codes2 * scale2
//
// All tensors of a bucket travel together, each in blocks of its own. An element that is not finite leaves no residual,
// since the residual would stay NaN. If a step changes no states because its gradients are not finite (loss_scaling.h),
// it does not change the residuals either: each residual is updated under the same condition as its %w.
//
// An all_reduce has no residual if its operand is not the gradient of a state that the graph updates.

#pragma once

#include <string_view>

#include "core/graph.h"
#include "passes/pass.h"

namespace lockstep::passes {

Pass QuantizeWire();

// Returns the state whose gradient, or the sum from which that is computed, has this name, by the names that train-step
// gives. Returns null if there is none, or if the graph does not update it.
const Input* StateOfGradient(const Graph& graph, std::string_view name);

}  // namespace lockstep::passes
