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

// Reads the attributes activations, activation_alpha and activation_beta. `defaults` are the functions of one
// direction. Functions that have an alpha, or a beta, take the numbers of the attribute in order.
absl::StatusOr<std::vector<Activation>> ReadActivations(OnnxNode& n, const std::vector<std::string>& defaults,
                                                        int64_t directions);

Value ApplyActivation(Builder& b, const Activation& activation, Value x);

// log(1 + exp(x)), also for the operator Softplus. Its gradient at 0 is 1/2.
Value SoftplusOf(Builder& b, Value x);

}  // namespace lockstep
