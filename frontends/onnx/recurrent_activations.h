// The functions that RNN, GRU and LSTM name in their attribute `activations`. Internal to the frontend.

#pragma once

#include <string>
#include <vector>

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

struct Activation {
  std::string name;  // in lower case
  double alpha = 0, beta = 0;
};

// From the attributes activations, activation_alpha and activation_beta: `defaults`, those of one direction, for each.
// Functions with an alpha, or a beta, take the numbers in order.
absl::StatusOr<std::vector<Activation>> ReadActivations(OnnxNode& n, const std::vector<std::string>& defaults,
                                                        int64_t directions);

Value ApplyActivation(Builder& b, const Activation& activation, Value x);

// log(1 + exp(x)), which is an operator too. Its gradient at 0 is 1/2.
Value SoftplusOf(Builder& b, Value x);

}  // namespace lockstep
