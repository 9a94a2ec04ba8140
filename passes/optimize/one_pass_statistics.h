// Lets batch normalisations compute the mean and the variance of each channel in one pass over memory. For targets with
// fast f64: the sums must be in f64, as the variance is then a difference of two large numbers.
//
//   %y, %mean, %variance = batch_norm_training %x, %scale, %bias {epsilon=1e-05} : f32[4,3,8,8], f32[3], f32[3]
// becomes
//   %y, %mean, %variance = batch_norm_training %x, %scale, %bias {epsilon=1e-05, one_pass=true} : …
//
// Runs before `distribute`, which decomposes normalisations over the batches of all ranks: each rank then sends both
// sums at once, where the second of two passes has to wait for the mean over all ranks.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

// Does nothing if `fast_f64` is false.
Pass OnePassStatistics(bool fast_f64);

}  // namespace lockstep::passes
