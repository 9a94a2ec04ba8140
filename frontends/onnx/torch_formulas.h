// Recognises formulas that PyTorch's exporter writes for one PyTorch function. The formula overflows, or has a gradient
// of 0 times infinity, where the function does not. So each is imported as the function; the operands of its last node
// show which one it is. Internal to the frontend.

#pragma once

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// log(x). For a sigmoid x it is PyTorch's logsigmoid, and for a sum of two exponentials its logaddexp, without
// overflow.
Value LogOf(Builder& b, Value x);

// The same for a quotient x / (1 - x), PyTorch's logit: its gradient at 0 and 1 is infinite.
Value LogitOf(Builder& b, Value quotient);

// The square root of a sum of squares, which is not negative. At 0 its gradient is 0, as for PyTorch's norms and std.
// PyTorch's sqrt has an infinite gradient there.
Value NormOf(Builder& b, Value sum_of_squares);

// A sum of powers to a positive `power`, likewise.
Value NormOf(Builder& b, Value sum_of_powers, Value power);

// True if x is a mean of squares of differences from a mean, times some factor. Its root is then PyTorch's std.
bool IsVariance(Value x);

// True if x is a sum, as in PyTorch's norms.
bool IsSum(Value x);

// max(log_of_x, bound), where log_of_x is a logarithm and exp(bound) is about 0, as in PyTorch's binary_cross_entropy.
// Where the bound is larger, the gradient of x is 0 instead of 0 / 0. Returns null if log_of_x is not a logarithm.
Value BoundedLog(Builder& b, Value log_of_x, Value bound);

// The PyTorch function `name` ("sinc.default", "xlogy.Tensor" or "atan2.default") of which select(condition, yes, no)
// is the last node. Returns null if the nodes have another form, or for other names.
Value SelectOf(Builder& b, const std::string& name, Value condition, Value yes, Value no);

}  // namespace lockstep
