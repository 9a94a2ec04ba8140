// Gradient accumulation: a training step that computes one micro-batch after the other, and adds up what they come to,
// before the optimizer sees it. One micro-batch's activations are in memory at a time. Called by MakeTrainStep; any
// thread that owns the graph.
//
//   graph @step(%x: f32[8,3] split(0), %y: f32[8,2] split(0), state %w: f32[3,2]) -> (loss: f32[], %w: f32[3,2]) {
//     %z = matmul %x, %w : f32[8,2]
//     …                                                                 // %loss and %dz of %z and %y
//     %grad/w = matmul %x, %dz {transpose_a=true} : f32[3,2]
//     %w.next = sgd %w, %grad/w {learning_rate=0.1} : f32[3,2]
//     return %loss, %w.next
//   }
// becomes with 4 micro-batches
//   graph @step(…) -> (loss: f32[], %w: f32[3,2]) {
//     %xs = x, cut : f32[4,2,3]            // %xs[j] = x[j], x[j + 4]: every fourth row
//     %ys = y, cut : f32[4,2,2]
//     %loss, %grad/w = scan %xs, %ys, %w {scanned=2, summed=2, length=4, one_at_a_time=true, body=
//       graph @micro_batch(%x: f32[2,3], %y: f32[2,2], %w: f32[3,2]) -> (loss: f32[], grad/w: f32[3,2]) {…}}
//     %w.next = sgd %w, %grad/w {learning_rate=0.1} : f32[3,2]
//     return %loss, %w.next
//   }
//
// A micro-batch is a rank in time: the step is distributed over a mesh axis of as many ranks as there are micro-batches
// (core/micro_batches.h). What the ranks of that axis would compute alone is the body of a loop; what an all_reduce
// would add up is summed over the iterations; what all of them would hold alike is computed once. So the theorem of
// distribute is that of this pass: the result is, up to rounding, the step of the whole batch (docs/decisions/0023).
//
//  * What the micro-batches must know of each other before they go on is computed by a loop of its own before, which
//    computes what it needs for that alone. How many labels count is no such thing where the loss is one mean
//    (late_mean.h); of a sum of several it is.
//  * The micro-batches are strided, so that each rank has its part of each of them, on any number of ranks. Only inputs
//    that are split along the data axis are cut; cutting costs a copy of them.
//  * Draws follow from the place of an element in the whole batch: they are those of the step that is not cut.
//  * Batch normalisation is by the statistics of a micro-batch, and the running statistics move once a step, by their
//    mean: the one thing that differs from a step of the whole batch.

#pragma once

#include <cstdint>
#include <string_view>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// The source of what cuts batches into micro-batches, and puts together what loops make of them.
inline constexpr std::string_view kMicroBatchesSource = "micro-batches";

// Cuts `step`, a one-rank program such as MakeTrainStep makes, into `micro_batches` parts; 1 changes nothing. An error
// if no input is a batch, or if one is no multiple of `micro_batches`.
absl::Status AccumulateGradients(Graph& step, int64_t micro_batches);

}  // namespace lockstep::passes
