// Formulas that torch's exporter writes for one function of PyTorch, and that overflow, or have a gradient of 0 times
// infinity, where the function does not. Each is imported as the function, as its value shows what it was made of.
// Internal to the frontend.

#pragma once

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// log(x). Of a sigmoid it is PyTorch's logsigmoid, and of a sum of two exponentials its logaddexp, without overflow.
Value LogOf(Builder& b, Value x);

// The same of x / (1 - x), PyTorch's logit: its gradient at 0 and 1 is infinite.
Value LogitOf(Builder& b, Value quotient);

// The square root of a sum of squares, which is not negative. Where it is 0 it has the gradient 0, as PyTorch's norms
// and its std have, whereas its sqrt has an infinite one.
Value NormOf(Builder& b, Value sum_of_squares);

// x to a power above 0, likewise.
Value NormOf(Builder& b, Value sum_of_powers, Value power);

// Whether x is a mean of squares of differences from a mean, times some factor: then its root is PyTorch's std.
bool IsVariance(Value x);

// Whether x is a sum, as in PyTorch's norms.
bool IsSum(Value x);

// max(log_of_x, bound), where log_of_x is a logarithm and exp(bound) is about 0, as in PyTorch's binary_cross_entropy.
// Where the bound is the larger one, x has the gradient 0 instead of 0 / 0. Null if log_of_x is no logarithm.
Value BoundedLog(Builder& b, Value log_of_x, Value bound);

// What select(condition, yes, no) stands for as the last node of PyTorch's `name`, "sinc.default", "xlogy.Tensor" or
// "atan2.default"; null if it has another form, or for other names.
Value SelectOf(Builder& b, const std::string& name, Value condition, Value yes, Value no);

}  // namespace lockstep
