// Gradients of a mean over what counts, divided by the count at the end.
//
//   %sum = reduce_sum %losses; %count = reduce_sum %mask; %loss = div %sum, %count
//   %grad/w/sum = … the gradient of %sum
//   %grad/w = div %grad/w/sum, %count
//
// Derived from %loss itself, every gradient would begin with 1 / %count. On several ranks that is the count of all: the
// whole backward pass would wait for a small collective, which here travels with the gradients
// (passes/distribute/reduce_before_scale.h); and micro-batches, which are ranks in time, would have to be counted by a
// loop of their own. Called by MakeTrainStep; any thread that owns the graph.

#pragma once

#include <optional>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// A loss that is `sum` / `count`, perhaps as another dtype of floats.
struct LossQuotient {
  Value sum, count;  // scalars of one dtype
};

// Of the loss, if it is such a quotient, whose count depends on data, and not on any of `states`.
std::optional<LossQuotient> LossQuotientOf(Value loss, const std::vector<Value>& states);

// Divides what are gradients of a quotient's sum by its count, if that is not 0; a null stays one.
absl::Status DivideByCount(Graph& graph, Value count, std::vector<Value>& gradients);

}  // namespace lockstep::passes
