// Gradients of a mean over counted elements, with the division by the count at the end.
//
//   %sum = reduce_sum %losses; %count = reduce_sum %mask; %loss = div %sum, %count
//   %grad/w/sum = … the gradient of %sum
//   %grad/w = div %grad/w/sum, %count
//
// Gradients of %loss itself would begin with 1 / %count. On several ranks that is the count over all ranks: the whole
// backward pass would wait for a small collective. With the division at the end, the count is reduced together with the
// gradients (passes/distribute/reduce_before_scale.h). Micro-batches, which are ranks in time, would need a separate
// loop for the count. Called by MakeTrainStep; any thread that owns the graph.

#pragma once

#include <optional>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

// A loss that is `sum` / `count`, perhaps converted to another float dtype.
struct LossQuotient {
  Value sum, count;  // scalars of one dtype
};

// Returns the quotient that `loss` is; nullopt if it is none. The count must depend on some input, but on none of
// `states`.
std::optional<LossQuotient> LossQuotientOf(Value loss, const std::vector<Value>& states);

// Divides gradients of a quotient's sum by its count. Where the count is 0 they stay unchanged. Null gradients stay
// null.
absl::Status DivideByCount(Graph& graph, Value count, std::vector<Value>& gradients);

}  // namespace lockstep::passes
