// Matrices that depend only on positions: identities, triangles, one-hot rows. They compare indices along two
// dimensions. Also determinants.

#include <algorithm>
#include <map>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Column minus row of each element of the last two dimensions of `shape`.
Value ColumnMinusRow(Builder& b, const Shape& shape) {
  const TensorType type{DType::kI64, shape};
  return b.Sub(b.Iota(type, shape.rank() - 1), b.Iota(type, shape.rank() - 2));
}

absl::Status EyeLike(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  if (x.shape().rank() != 2) return n.Error() << "input is " << x.type() << ", expected rank 2";
  DType dtype = x.dtype();
  if (n.has_attr("dtype")) {
    const absl::StatusOr<DType> given = DTypeFromOnnx(static_cast<int>(n.Int("dtype", 0)));
    if (!given.ok()) return n.Unsupported() << "attribute dtype: " << given.status().message();
    dtype = *given;
  }
  const Value diagonal = b.Constant(Tensor::Of<int64_t>(Shape(), {n.Int("k", 0)}));
  const Value is_one = b.Compare(ColumnMinusRow(b, x.shape()), b.Broadcast(diagonal, x.shape(), {}), "eq");
  n.SetOutput(0, b.Convert(is_one, dtype));
  return absl::OkStatus();
}

absl::Status Trilu(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  const Value x = n.input(0);
  Value diagonal = n.has_input(1) ? n.input(1) : b.Constant(Tensor::Of<int64_t>(Shape(), {0}));
  RETURN_IF_ERROR(b.status());
  if (diagonal.dtype() != DType::kI64 || diagonal.shape().num_elements() != 1)
    return n.Error() << "k is " << diagonal.type() << ", expected one i64";
  diagonal = b.Broadcast(b.Reshape(diagonal, Shape()), x.shape(), {});
  const Value kept = b.Compare(ColumnMinusRow(b, x.shape()), diagonal, n.Flag("upper", true) ? "ge" : "le");
  n.SetOutput(0, b.Select(kept, x, b.SplatLike(0, x)));
  return absl::OkStatus();
}

// A tensor of `shape` with `on` where the index along `dim` equals `positions`, whose shape lacks `dim`, and `off`
// elsewhere.
Value OneHotOf(Builder& b, Value positions, const Shape& shape, int64_t dim, Value on, Value off) {
  const Value count = b.Iota(TensorType{DType::kI64, shape}, dim);
  return b.Select(b.Compare(count, b.BroadcastOver(positions, shape, {dim}), "eq"), b.Broadcast(on, shape, {}),
                  b.Broadcast(off, shape, {}));
}

// Negative positions count from the end from opset 11 on. Positions outside [-depth, depth) give a row without `on`.
absl::Status OneHot(OnnxNode& n) {
  Builder& b = n.b();
  ASSIGN_OR_RETURN(const double depth, n.FloatInput(1));
  const Value indices = n.input(0), values = n.input(2);
  RETURN_IF_ERROR(b.status());
  if (!(depth >= 1 && depth <= static_cast<double>(kMaxElements)))
    return n.Error() << "depth is " << depth << ", expected at least 1";
  if (values.shape() != Shape({2})) return n.Error() << "values are " << values.type() << ", expected two";
  const int64_t extent = static_cast<int64_t>(depth);
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", -1), indices.shape().rank() + 1));
  Ints dims = indices.shape().dims();
  dims.insert(dims.begin() + axis, extent);
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(dims));
  const Value given = b.Convert(indices, DType::kI64);
  Value positions = given;
  if (n.opset() >= 11) {
    const Value is_negative = b.Compare(given, b.SplatLike(0, given), "lt");
    positions = b.Select(is_negative, b.AddScalar(given, static_cast<double>(extent)), given);
  }
  const Value off = b.Reshape(b.Slice(values, {0}, {1}), Shape()), on = b.Reshape(b.Slice(values, {1}, {2}), Shape());
  n.SetOutput(0, OneHotOf(b, positions, shape, axis, on, off));
  return absl::OkStatus();
}

// 1 at the first largest element along the axis, 0 elsewhere. Before opset 13, the axis and all dimensions after it
// count as one.
absl::Status Hardmax(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  const bool merges = n.opset() < 13;
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", merges ? 1 : -1), x.shape().rank()));
  Shape shape = x.shape();
  if (merges) {
    Ints dims(shape.dims().begin(), shape.dims().begin() + axis);
    int64_t count = 1;
    for (int64_t i = axis; i < shape.rank(); ++i) count *= shape[i];
    dims.push_back(count);
    shape = Shape(dims);
  }
  const Value largest = b.Op("argmax", {b.Reshape(x, shape)}, {{"dim", axis}});
  const Value one = b.Constant(Tensor::Scalar(x.dtype(), 1)), zero = b.Constant(Tensor::Scalar(x.dtype(), 0));
  n.SetOutput(0, b.Reshape(OneHotOf(b, largest, shape, axis, one, zero), x.shape()));
  return absl::OkStatus();
}

// Computes determinants by expansion along rows, with one minor for each set of columns. Gradients are exact also for
// singular matrices. It takes about n * 2^n products, so it is for small matrices only.
absl::Status Det(OnnxNode& n) {
  constexpr int64_t kMaxRows = 6;
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  const Value x = n.input(0);
  const int64_t rank = x.shape().rank(), rows = x.shape()[rank - 1];
  if (x.shape()[rank - 2] != rows) return n.Error() << "input is " << x.type() << ", expected square matrices";
  if (rows > kMaxRows) return n.Unsupported() << "matrices of more than " << kMaxRows << " rows: " << x.type();
  const Shape batch = x.shape().Without({rank - 2, rank - 1});
  const auto element = [&](int64_t row, int64_t column) {
    Ints start(static_cast<size_t>(rank), 0), limit = x.shape().dims();
    start[static_cast<size_t>(rank - 2)] = row;
    limit[static_cast<size_t>(rank - 2)] = row + 1;
    start[static_cast<size_t>(rank - 1)] = column;
    limit[static_cast<size_t>(rank - 1)] = column + 1;
    return b.Reshape(b.Slice(x, start, limit), batch);
  };
  // For each set of columns, the minor of as many first rows.
  std::map<int64_t, Value> minors{{0, b.Splat(1, TensorType{x.dtype(), batch})}};
  for (int64_t row = 0; row < rows; ++row) {
    std::map<int64_t, Value> next;
    for (const auto& [columns, minor] : minors) {
      for (int64_t column = 0; column < rows; ++column) {
        if (columns >> column & 1) continue;
        int64_t after = 0;  // number of the minor's columns after this one, which is the number of swaps
        for (int64_t other = column + 1; other < rows; ++other) after += columns >> other & 1;
        Value term = row == 0 ? element(row, column) : b.Mul(minor, element(row, column));
        if (after % 2 == 1) term = b.Neg(term);
        Value& sum = next[columns | int64_t{1} << column];
        sum = sum ? b.Add(sum, term) : term;
      }
    }
    minors = std::move(next);
    RETURN_IF_ERROR(b.status());
  }
  n.SetOutput(0, minors.begin()->second);
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> MatrixOps() {
  return {
      {"EyeLike", 9, kNoEnd, 1, 1, EyeLike}, {"Trilu", 14, kNoEnd, 1, 2, Trilu}, {"OneHot", 9, kNoEnd, 3, 3, OneHot},
      {"Hardmax", 1, kNoEnd, 1, 1, Hardmax}, {"Det", 11, kNoEnd, 1, 1, Det},
  };
}

}  // namespace lockstep
