// Products of values that are no inputs of the node as they are, but made of them: what the operators on floats and on
// quantised numbers share. Internal to the frontend.

#pragma once

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// NumPy's matmul: dimensions before the last two are broadcast; a vector is a row on the left and a column on the
// right, and its dimension is dropped from the result.
absl::StatusOr<Value> NumpyMatMul(OnnxNode& n, Value x, Value y);

// The convolution that the node's attributes describe, of x, which has the shape of input 0, without a bias.
absl::StatusOr<Value> Convolve(OnnxNode& n, Value x, Value filter);

}  // namespace lockstep
