// What the losses of elements come to: reductions over the global batch, and weights of samples and elements. Shared by
// all losses; called by AddLoss. Any thread that owns the graph.
//
//   mean       sum(w * losses) / sum(w * counts)
//   sum        sum(w * losses)
//   batchmean  sum(w * losses) / sum(w), w being of samples, which are counted by the first dimension
//
// w is 1 without weights. Both sums are over all ranks, so that an element weighs on many ranks what it does on one. A
// loss of weight 0 counts for nothing, whatever it is and whatever its target is (loss.cc), so that a batch may be
// padded.

#pragma once

#include <string>
#include <vector>

#include "passes/training/loss.h"

namespace lockstep::passes {

// The options that every loss has which is reduced: reduction, sample_weight and element_weight.
std::vector<OptionDef> ReductionOptions(bool has_batchmean);

// What `options`, which are complete, ask for. Requires that they have a reduction.
LossReduction ReductionOf(const AttributeMap& options);

// Weights, or null. Of samples they are [n], n the losses' first dimension; of elements they have the losses' shape.
struct LossWeights {
  Value samples, elements;
};

// The sum and the count by which the loss is their quotient, of the losses' dtype.
LossSum SumLosses(Builder& b, const LossElements& elements, const LossWeights& weights, LossReduction reduction);

// A scalar of the losses' dtype. Where nothing counts, the mean is 0 / 0, which is NaN.
Value ReduceLosses(Builder& b, const LossElements& elements, const LossWeights& weights, LossReduction reduction);

}  // namespace lockstep::passes
