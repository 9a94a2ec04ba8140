// Gradient accumulation: the training step computes one micro-batch after the other and sums their gradients before the
// optimizer. Only one micro-batch's activations are in memory at a time. Called by MakeTrainStep; any thread that owns
// the graph.
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
// A micro-batch is a rank in time: the step is distributed over a mesh axis with one rank for each micro-batch
// (core/micro_batches.h). The part that each rank of that axis would compute alone is the body of a loop. Values that
// an all_reduce would add up are summed over the iterations. Replicated values are computed once. So the guarantee of
// `distribute` holds here too: the result is, up to rounding, the step of the whole batch (docs/decisions/0023).
//
//  * A value that combines all micro-batches before they can continue is computed by a separate loop before, which
//    computes only what it needs for that. If the loss is one mean, the number of counted labels is not such a value
//    (late_mean.h); if it is a sum of several means, it is.
//  * The micro-batches are strided, so that each rank has its part of each of them, on any number of ranks. Only inputs
//    that are split along the data axis are cut. Cutting copies them.
//  * Random draws depend on the index of an element in the whole batch, so they equal those of the uncut step.
//  * Batch normalisation uses the statistics of a micro-batch, and the running statistics move once a step, by the mean
//    of these. This is the only difference from a step of the whole batch.

#pragma once

#include <cstdint>
#include <string_view>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// The source of nodes that cut batches into micro-batches and that join the results of loops.
inline constexpr std::string_view kMicroBatchesSource = "micro-batches";

// Cuts `step`, a one-rank program such as MakeTrainStep makes, into `micro_batches` micro-batches; 1 changes nothing.
// Returns an error if no input is a batch, or if the rows of one are not a multiple of `micro_batches`.
absl::Status AccumulateGradients(Graph& step, int64_t micro_batches);

}  // namespace lockstep::passes
