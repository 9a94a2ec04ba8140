// Puts batch normalisation in training mode: values are normalised by the statistics of the batch, and the running
// statistics, which are states, move towards those of the batch.
//
//   graph @f(%x: f32[8,3], state %s: f32[3], state %b: f32[3], state %m: f32[3], state %v: f32[3]) -> (y: f32[8,3]) {
//     %y = batch_norm_inference %x, %s, %b, %m, %v {epsilon=1e-05} : f32[8,3]
//     return %y
//   }
// becomes, n being the number of values per channel (8 here) and momentum that of the node (0.9),
//   graph @f(...) -> (y: f32[8,3], %m: f32[3], %v: f32[3]) {
//     %y, %mean, %variance = batch_norm_training %x, %s, %b {epsilon=1e-05} : f32[8,3], f32[3], f32[3]
//     %m.next = momentum * %m + (1 - momentum) * %mean
//     %v.next = momentum * %v + (1 - momentum) * n / (n - 1) * %variance
//     return %y, %m.next, %v.next
//   }
// The running variance is the unbiased one, as in PyTorch. A statistic of several nodes, as of a module that is called
// twice, moves with each, in their order. A batch_norm_inference whose mean or variance is no state stays.

#pragma once

#include <optional>
#include <string>

#include "passes/pass.h"

namespace lockstep::passes {

struct TrainingModeOptions {
  std::optional<double> momentum;     // in place of the nodes' own; in [0, 1]
  std::string statistics = "global";  // or "rank": see batch_norm_training
};

// An error if a running statistic has a next value already.
Pass TrainingMode(TrainingModeOptions options = {});

}  // namespace lockstep::passes
