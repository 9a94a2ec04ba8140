// Reductions of the losses of elements over the global batch, with weights of samples and elements. Shared by all
// losses. Called by AddLoss; any thread that owns the graph.
//
//   mean       sum(w * losses) / sum(w * counts)
//   sum        sum(w * losses)
//   batchmean  sum(w * losses) / sum(w), with one w for each sample, that is, for each index of the first dimension
//
// Without weights w is 1. Both sums are over all ranks, so the weight of an element does not depend on the number of
// ranks. A loss of weight 0 has no effect, whatever its value and its target are (loss.cc), so a batch may be padded.

#pragma once

#include <string>
#include <vector>

#include "passes/training/loss.h"

namespace lockstep::passes {

// Returns the options of every reduced loss: reduction, sample_weight and element_weight.
std::vector<OptionDef> ReductionOptions(bool has_batchmean);

// Returns the reduction that `options` choose. Requires complete options with a reduction.
LossReduction ReductionOf(const AttributeMap& options);

// Weights; each may be null. `samples` is [n], with n the losses' first dimension; `elements` has the losses' shape.
struct LossWeights {
  Value samples, elements;
};

// Returns the sum and the count whose quotient is the loss, in the losses' dtype.
LossSum SumLosses(Builder& b, const LossElements& elements, const LossWeights& weights, LossReduction reduction);

// Returns the reduced loss, a scalar of the losses' dtype. If nothing counts, the mean is 0 / 0, which is NaN.
Value ReduceLosses(Builder& b, const LossElements& elements, const LossWeights& weights, LossReduction reduction);

}  // namespace lockstep::passes
