// Puts a model in training mode.
//
// Batch normalisation: values are normalised by the statistics of the batch, and the running statistics, which are
// states, move towards them.
//
//   graph @f(%x: f32[8,3], state %s: f32[3], state %b: f32[3], state %m: f32[3], state %v: f32[3]) -> (y: f32[8,3]) {
//     %y = batch_norm_inference %x, %s, %b, %m, %v {epsilon=1e-05} : f32[8,3]
//     return %y
//   }
// becomes, with the momentum of the node (0.9),
//   graph @f(...) -> (y: f32[8,3], %m: f32[3], %v: f32[3]) {
//     %y, %mean, %variance = batch_norm_training %x, %s, %b {epsilon=1e-05} : f32[8,3], f32[3], f32[3]
//     %unbiased = unbiased_variance %x, %variance : f32[3]
//     %m.next = momentum * %m + (1 - momentum) * %mean
//     %v.next = momentum * %v + (1 - momentum) * %unbiased
//     return %y, %m.next, %v.next
//   }
// As in PyTorch, the running variance follows the unbiased variance of the samples that are normalised together: the
// global batch, a rank's share of it, or a micro-batch. A statistic that several nodes share, such as of a module that
// is called twice, is moved by each of them, in their order. A batch_norm_inference whose mean or variance is no state,
// perhaps behind stop_gradient, stays. If batches may be uneven, statistics are of the rows that do not pad (uneven.h),
// and primitive ops, which take two passes over the rows for the variance, replace the node.
//
// Dropout: each `dropout`, which is the identity, becomes a random draw of its own, new in each run. The seed and the
// step of the draws become states (core/random.h).
//
//   graph @g(%x: f32[8,3], %p: f32[]) -> (y: f32[8,3]) {
//     %y, %mask = dropout %x, %p : f32[8,3], bool[8,3]
//     return %y
//   }
// becomes
//   graph @g(%x: f32[8,3], %p: f32[], state %random/seed: i64[], state %random/step: i64[])
//       -> (y: f32[8,3], %random/step: i64[]) {
//     %mask = random bits of %random/seed, %random/step, element and stream 0, as numbers in [0, 1), at least %p
//     %y = select %mask, %x / (1 - %p), 0
//     %random/step.next = add %random/step, 1
//     return %y, %random/step.next
//   }

#pragma once

#include <optional>
#include <string>

#include "passes/pass.h"

namespace lockstep::passes {

struct TrainingModeOptions {
  std::optional<double> momentum = {};  // replaces the nodes' own; in [0, 1]
  std::string statistics = "global";    // or "rank": see batch_norm_training
  bool dropout = true;                  // false: removes dropouts
  bool uneven = false;  // adds the input `rows`, so that batches need not be full; statistics must be global, and cover
                        // all micro-batches
};

// Returns an error if a running statistic already has a next value, or if the body of a loop has a `dropout`: each
// iteration would drop the same elements.
Pass TrainingMode(TrainingModeOptions options = {});

}  // namespace lockstep::passes
