// Matrix products.

#include <cmath>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/products.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// x with its dimensions before the last two broadcast to `batch`.
Value WithBatch(Builder& b, Value x, const Shape& batch) {
  Ints dims = batch.dims();
  const int64_t rank = x.shape().rank();
  dims.push_back(x.shape()[rank - 2]);
  dims.push_back(x.shape()[rank - 1]);
  return BroadcastTo(b, x, Shape(dims));
}

absl::StatusOr<Shape> BatchShape(OnnxNode& n, Value x, Value y) {
  const int64_t rank = std::max(x.shape().rank(), y.shape().rank()) - 2;
  Ints dims(static_cast<size_t>(rank), 1);
  for (const Shape& shape : {x.shape(), y.shape()}) {
    const int64_t offset = rank - (shape.rank() - 2);
    for (int64_t i = 0; i + 2 < shape.rank(); ++i) {
      int64_t& dim = dims[static_cast<size_t>(offset + i)];
      if (shape[i] == 1 || shape[i] == dim) continue;
      if (dim != 1)
        return n.Error() << "batch dimensions of " << x.type() << " and " << y.type() << " do not broadcast";
      dim = shape[i];
    }
  }
  return n.CheckedShape(std::move(dims));
}

absl::Status MatMul(OnnxNode& n) {
  const Value x = n.input(0), y = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const Value product, NumpyMatMul(n, x, y));
  n.SetOutput(0, product);
  return absl::OkStatus();
}

absl::Status Gemm(OnnxNode& n) {
  Builder& b = n.b();
  n.Ignore("broadcast");  // before opset 7; redundant, as the shape of C shows if it has to be repeated
  const double alpha = n.Float("alpha", 1.0), beta = n.Float("beta", 1.0);
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  if (!IsFloat(x.dtype()) && (alpha != std::floor(alpha) || beta != std::floor(beta))) {
    return n.Unsupported() << "attributes alpha " << alpha << " and beta " << beta << " of integers, " << x.type()
                           << ", expected whole numbers";
  }
  const bool transpose_a = n.Flag("transA", false), transpose_b = n.Flag("transB", false);
  Value result = b.MatMul(x, n.input(1), transpose_a, transpose_b);
  RETURN_IF_ERROR(b.status());
  if (alpha != 1.0) result = b.Scale(result, alpha);
  if (n.has_input(2) && beta != 0.0) {
    const Value c = beta == 1.0 ? n.input(2) : b.Scale(n.input(2), beta);
    RETURN_IF_ERROR(b.status());
    ASSIGN_OR_RETURN(const Shape shape, BroadcastShapes(n, {result, c}));
    if (shape != result.shape()) return n.Error() << "C " << c.type() << " does not broadcast to " << result.type();
    result = b.Add(result, BroadcastTo(b, c, shape));
  }
  n.SetOutput(0, result);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Value> NumpyMatMul(OnnxNode& n, Value x, Value y) {
  Builder& b = n.b();
  for (Value operand : {x, y}) {
    if (operand.shape().rank() < 1)
      return n.Error() << "an operand is " << operand.type() << ", expected rank 1 or more";
  }
  const bool left_vector = x.shape().rank() == 1, right_vector = y.shape().rank() == 1;
  const TensorType x_type = x.type(), y_type = y.type();
  if (left_vector) x = b.Reshape(x, Shape({1, x.shape()[0]}));
  if (right_vector) y = b.Reshape(y, Shape({y.shape()[0], 1}));
  RETURN_IF_ERROR(b.status());
  const int64_t x_rank = x.shape().rank(), y_rank = y.shape().rank();
  const int64_t summed_x = x.shape()[x_rank - 1], summed_y = y.shape()[y_rank - 2];
  if (summed_x != summed_y) {
    return n.Error() << x_type << " times " << y_type << ": the summed dimensions are " << summed_x << " and "
                     << summed_y;
  }
  ASSIGN_OR_RETURN(const Shape batch, BatchShape(n, x, y));
  Ints dims = batch.dims();
  Value product;
  if (y_rank == 2) {
    product = b.MatMul(x, y);  // one product, instead of one for each index of the batch
  } else {
    product = b.MatMul(WithBatch(b, x, batch), WithBatch(b, y, batch));
  }
  if (!left_vector) dims.push_back(x.shape()[x_rank - 2]);
  if (!right_vector) dims.push_back(y.shape()[y_rank - 1]);
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(std::move(dims)));
  return b.Reshape(product, shape);
}

std::vector<OnnxOp> MatMulOps() {
  return {
      {"MatMul", 1, kNoEnd, 2, 2, MatMul},
      {"Gemm", 1, kNoEnd, 2, 3, Gemm},
  };
}

}  // namespace lockstep
