// Reverse accumulation over the ops' vector-Jacobian products: for gradients of a program (passes/training/autodiff.h),
// and of a body inside of one.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// The gradient of a loss with respect to a value, of the value's type.
struct GradientOf {
  Value value, gradient;
};

// Appends nodes that compute the gradient of a loss with respect to each of `wrt` (values of float dtypes), where
// `known` says what the loss depends on in the end, and how. The i-th value is of the type of wrt[i], or null if
// nothing flows back to it. An op on the way that has no gradient is an error that names it. An op may put another
// node, with more results, in the place of its own.
absl::StatusOr<std::vector<Value>> Backpropagate(Graph& graph, const std::vector<GradientOf>& known,
                                                 const std::vector<Value>& wrt);

}  // namespace lockstep
