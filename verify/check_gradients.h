// Checks the gradients that a program computes: with tangents, which go through it in the other direction
// (verify/tangent.h). Any thread.

#pragma once

#include <cstdint>
#include <vector>

#include "core/backpropagate.h"
#include "core/graph.h"
#include "core/status.h"
#include "verify/exact_tensor.h"
#include "verify/meaning.h"

namespace lockstep::verify {

// Checks that a graph of one rank computes the gradients of the float scalar `loss` with respect to some of its inputs,
// for these values of all inputs. An error names the inputs whose gradients are wrong, or an op that has no exact
// meaning or no rule. A gradient is not checked if the derivative is infinite or NaN, or if the loss is and the
// gradient, too. This is reported as an assumption.
absl::Status CheckGradients(const Graph& graph, Value loss, const std::vector<GradientOf>& gradients,
                            const std::vector<ExactTensor>& inputs, uint64_t seed, Assumptions& assumptions);

// Checks the gradients of a training step as passes::MakeTrainStep makes it, before other passes run: the values
// grad/<state> are the derivatives of the result `loss` by the trained states. Inputs and directions are random numbers
// that follow from `seed`. A trained state whose gradient has no such name is reported as an assumption. Returns
// NotFound for a program that has no result `loss` or no gradients.
//
//   the gradients of loss by fc1.weight, fc1.bias are not its derivatives
absl::Status CheckGradientsOfStep(const Graph& step, uint64_t seed, Assumptions& assumptions);

}  // namespace lockstep::verify
