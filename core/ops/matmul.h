// The matrix product that a `matmul` computes, in terms of its operands as they lie in memory. For the op and kernels.

#pragma once

#include <cstdint>

#include "core/graph.h"

namespace lockstep::ops {

// y = a b for each index of the batch. a, b and y have equal ranks. If the leading dimensions of x hold rows, or if
// sum_batch sums over them, the operands are reshaped to one matrix each.
struct MatMulForm {
  Shape a, b, y;
  bool transpose_a, transpose_b;                      // true if a, b are given transposed in the last two dimensions
  int64_t rows, columns, contracted_a, contracted_b;  // dimensions of a, b, a and b
  Shape result;                                       // the node's result: y with the leading dimensions of x

  MatMulForm(const AttributeMap& attributes, const Shape& x_shape, const Shape& y_shape);
  explicit MatMulForm(const Node& node);
};

}  // namespace lockstep::ops
