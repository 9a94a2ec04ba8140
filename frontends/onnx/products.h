// Products of values that a converter has derived from the node's inputs. The operators on floats and on quantised
// numbers share them. Internal to the frontend.

#pragma once

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// NumPy's matmul: dimensions before the last two are broadcast; a vector is a row on the left and a column on the
// right, and its dimension is dropped from the result.
absl::StatusOr<Value> NumpyMatMul(OnnxNode& n, Value x, Value y);

// The convolution of x and `filter` with the node's attributes, without a bias. Requires that x has the shape of input
// 0.
absl::StatusOr<Value> Convolve(OnnxNode& n, Value x, Value filter);

}  // namespace lockstep
