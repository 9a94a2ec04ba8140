// What a `matmul` computes with its operands as they lie in memory; for the op and for its kernels.

#pragma once

#include <cstdint>

#include "core/graph.h"

namespace lockstep::ops {

// y = a b for each index of the batch, where a, b and y have equal ranks: an operand whose leading dimensions are rows,
// or are summed over with them, is seen as one matrix.
struct MatMulForm {
  Shape a, b, y;
  bool transpose_a, transpose_b;                      // whether a, b are given transposed in the last two dimensions
  int64_t rows, columns, contracted_a, contracted_b;  // dimensions: of a, b, a and b
  Shape result;                                       // of the node: y, with the rows as they are in x

  MatMulForm(const AttributeMap& attributes, const Shape& x_shape, const Shape& y_shape);
  explicit MatMulForm(const Node& node);
};

}  // namespace lockstep::ops
