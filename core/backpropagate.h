// Reverse-mode differentiation by the ops' vector-Jacobian products. Used for the gradients of a program
// (passes/training/autodiff.h) and of the body of a node.

#pragma once

#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// The gradient of a loss with respect to a value. It has the value's type.
struct GradientOf {
  Value value, gradient;
};

// Appends nodes that compute the gradient of a loss with respect to each of `wrt` (values of float dtypes). `known` has
// the gradients from which backpropagation starts. The i-th returned value has the type of wrt[i], or is null if no
// gradient flows back to wrt[i]. An op on the way that has no gradient is an error that names it. An op's rule may
// replace its node by another that has more results.
absl::StatusOr<std::vector<Value>> Backpropagate(Graph& graph, const std::vector<GradientOf>& known,
                                                 const std::vector<Value>& wrt);

}  // namespace lockstep
