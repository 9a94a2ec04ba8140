// Puts a model in training mode.
//
// Batch normalisation: values are normalised by the statistics of the batch, and the running statistics, which are
// states, move towards those of the batch.
//
//   graph @f(%x: f32[8,3], state %s: f32[3], state %b: f32[3], state %m: f32[3], state %v: f32[3]) -> (y: f32[8,3]) {
//     %y = batch_norm_inference %x, %s, %b, %m, %v {epsilon=1e-05} : f32[8,3]
//     return %y
//   }
// becomes, momentum being that of the node (0.9),
//   graph @f(...) -> (y: f32[8,3], %m: f32[3], %v: f32[3]) {
//     %y, %mean, %variance = batch_norm_training %x, %s, %b {epsilon=1e-05} : f32[8,3], f32[3], f32[3]
//     %unbiased = unbiased_variance %x, %variance : f32[3]
//     %m.next = momentum * %m + (1 - momentum) * %mean
//     %v.next = momentum * %v + (1 - momentum) * %unbiased
//     return %y, %m.next, %v.next
//   }
// The running variance follows the unbiased one of what is normalised as one, as in PyTorch: the global batch, or a
// rank's share of it, or a micro-batch. A statistic of several nodes, as of a module that is called
// twice, moves with each, in their order. A batch_norm_inference whose mean or variance is no state stays.
// If batches need not be full, statistics are of the rows that are there (uneven.h); the node becomes the primitive ops
// of that.
//
// Dropout: each `dropout`, which is the identity, becomes a draw of its own, anew in each run, and seed and step become
// states (core/random.h).
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
  std::optional<double> momentum = {};  // in place of the nodes' own; in [0, 1]
  std::string statistics = "global";    // or "rank": see batch_norm_training
  bool dropout = true;                  // false: what would drop is taken out
  bool uneven = false;  // adds the input `rows`: batches need not be full; statistics are global then, and of all
                        // micro-batches
};

// An error if a running statistic has a next value already, or if a loop's body has a `dropout`: each of its runs would
// drop the same.
Pass TrainingMode(TrainingModeOptions options = {});

}  // namespace lockstep::passes
