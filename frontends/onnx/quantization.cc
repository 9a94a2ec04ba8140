// Quantised numbers: integers that stand for (integer - zero point) * scale. Values are rounded to the nearest integer,
// ties to even; values out of range saturate. Products of integers are exact.

#include <algorithm>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/products.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

bool IsQuantized(DType dtype) { return IsInteger(dtype) && SizeOf(dtype) <= 2; }
bool IsByte(DType dtype) { return IsInteger(dtype) && SizeOf(dtype) == 1; }

// Rounds to the nearest whole number, ties to even: floor(x), plus one if the fraction is above a half, or is a half
// and the floor is odd.
Value Round(Builder& b, Value x) {
  const Value floor = b.Unary("floor", x), half = b.SplatLike(0.5, x), one = b.SplatLike(1, x);
  const Value fraction = b.Sub(x, floor);
  const Value is_odd = b.Compare(b.Scale(b.Unary("floor", b.Scale(floor, 0.5)), 2.0), floor, "ne");
  const Value up = b.Select(is_odd, b.Compare(fraction, half, "ge"), b.Compare(fraction, half, "gt"));
  return b.Select(up, b.Add(floor, one), floor);
}

// x rounded, plus the zero point, saturated to `dtype`. The sum is in f32 or f64, which is exact if it fits into 16
// bits.
Value RoundTo(Builder& b, Value x, Value zero_point, DType dtype) {
  Value rounded = Round(b, x);
  if (rounded && SizeOf(rounded.dtype()) < 4) rounded = b.Convert(rounded, DType::kF32);
  if (zero_point && rounded) rounded = b.Add(rounded, b.Convert(zero_point, rounded.dtype()));
  return b.Convert(rounded, dtype);
}

// Input i, a scale or a zero point, broadcast to the shape of x. The input has one element, one for each index of the
// axis, or one for each block of `block` elements along the axis.
absl::StatusOr<Value> PerElement(OnnxNode& n, int i, const Shape& x, int64_t given_axis, int64_t block) {
  Builder& b = n.b();
  const Value value = n.input(i);
  RETURN_IF_ERROR(b.status());
  if (value.shape().num_elements() == 1 && value.shape().rank() <= 1)
    return b.Broadcast(b.Reshape(value, Shape()), x, {});
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(given_axis, x.rank()));
  if (block == 0) {
    if (value.shape() == Shape({x[axis]})) return b.BroadcastAlong(value, x, axis);
    return n.Error() << "input " << i << " is " << value.type() << ", expected one element or " << x[axis];
  }
  const int64_t blocks = (x[axis] + block - 1) / block;
  if (block < 0 || value.shape() != x.WithDim(axis, blocks))
    return n.Error() << "input " << i << " is " << value.type() << " for blocks of " << block << " along dimension "
                     << axis << " of shape " << x;
  Ints repeated = value.shape().dims(), dims;
  repeated.insert(repeated.begin() + axis + 1, block);
  ASSIGN_OR_RETURN(const Shape repeated_shape, n.CheckedShape(repeated));
  for (int64_t d = 0; d <= x.rank(); ++d) {
    if (d != axis + 1) dims.push_back(d);
  }
  const Value all = b.Reshape(b.Broadcast(value, repeated_shape, dims), x.WithDim(axis, blocks * block));
  return blocks * block == x[axis] ? all : b.Slice(all, Ints(static_cast<size_t>(x.rank()), 0), x.dims());
}

struct Granularity {
  int64_t axis, block;
};

Granularity ReadGranularity(OnnxNode& n) { return {n.Int("axis", 1), n.opset() >= 21 ? n.Int("block_size", 0) : 0}; }

// The dtype that the attribute names; `otherwise` if it is absent or 0.
absl::StatusOr<DType> DTypeAttr(OnnxNode& n, std::string_view name, DType otherwise) {
  const int64_t given = n.Int(name, 0);
  if (given == 0) return otherwise;
  const absl::StatusOr<DType> dtype = DTypeFromOnnx(static_cast<int>(given));
  if (!dtype.ok()) return n.Unsupported() << "attribute " << name << ": " << dtype.status().message();
  return *dtype;
}

absl::Status QuantizeLinear(OnnxNode& n) {
  Builder& b = n.b();
  n.Ignore("saturate");  // only for 8-bit floats
  const Value x = n.input(0), scale = n.input(1);
  RETURN_IF_ERROR(b.status());
  const Granularity granularity = ReadGranularity(n);
  ASSIGN_OR_RETURN(DType dtype, DTypeAttr(n, "output_dtype", n.has_input(2) ? n.type(2).dtype : DType::kU8));
  if (n.has_input(2) && n.type(2).dtype != dtype)
    return n.Error() << "attribute output_dtype is " << dtype << ", the zero point is " << n.type(2);
  if (!IsQuantized(dtype)) return n.Error() << "quantises to " << dtype << ", expected integers of 8 or 16 bits";
  ASSIGN_OR_RETURN(const DType precision,
                   DTypeAttr(n, "precision", IsFloat(scale.dtype()) ? scale.dtype() : DType::kF32));
  if (!IsFloat(precision)) return n.Error() << "attribute precision is " << precision << ", expected a float type";
  ASSIGN_OR_RETURN(const Value scales, PerElement(n, 1, x.shape(), granularity.axis, granularity.block));
  Value zero_points;
  if (n.has_input(2)) {
    ASSIGN_OR_RETURN(zero_points, PerElement(n, 2, x.shape(), granularity.axis, granularity.block));
  }
  n.SetOutput(0, RoundTo(b, b.Div(b.Convert(x, precision), b.Convert(scales, precision)), zero_points, dtype));
  return absl::OkStatus();
}

absl::Status DequantizeLinear(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0), scale = n.input(1);
  RETURN_IF_ERROR(b.status());
  const Granularity granularity = ReadGranularity(n);
  if (!IsQuantized(x.dtype()) && x.dtype() != DType::kI32)
    return n.Error() << "input is " << x.type() << ", expected integers of 8 or 16 bits, or i32";
  ASSIGN_OR_RETURN(const DType dtype, DTypeAttr(n, "output_dtype", scale.dtype()));
  if (!IsFloat(dtype) || !IsFloat(scale.dtype()))
    return n.Error() << "scale " << scale.type() << " and a result of " << dtype << ", expected floats";
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  ASSIGN_OR_RETURN(const Value scales, PerElement(n, 1, x.shape(), granularity.axis, granularity.block));
  Value centered = b.Convert(x, DType::kI32);
  if (n.has_input(2)) {
    if (n.type(2).dtype != x.dtype()) return n.Error() << "zero point is " << n.type(2) << ", the input " << x.type();
    ASSIGN_OR_RETURN(const Value zeros, PerElement(n, 2, x.shape(), granularity.axis, granularity.block));
    centered = b.Sub(centered, b.Convert(zeros, DType::kI32));
  }
  n.SetOutput(0, b.Convert(b.Mul(b.Convert(centered, wide), b.Convert(scales, wide)), dtype));
  return absl::OkStatus();
}

// Quantises x to u8, with a scale and a zero point such that 0 and all of x are in range.
absl::Status DynamicQuantizeLinear(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  Ints all;
  for (int64_t i = 0; i < x.shape().rank(); ++i) all.push_back(i);
  const auto extremum = [&](std::string_view op) { return all.empty() ? x : b.Op(op, {x}, {{"dims", all}}); };
  const Value zero = b.Constant(Tensor::Scalar(x.dtype(), 0)), most = b.SplatLike(255, zero);
  const Value low = b.Min(extremum("reduce_min"), zero), high = b.Max(extremum("reduce_max"), zero);
  const Value range = b.Select(b.Compare(high, low, "eq"), b.SplatLike(1, zero), b.Sub(high, low));
  const Value scale = b.Div(range, most);
  const Value zero_point = Round(b, b.Min(b.Max(b.Neg(b.Div(low, scale)), zero), most));
  n.SetOutput(
      0, RoundTo(b, b.Div(x, b.Broadcast(scale, x.shape(), {})), b.Broadcast(zero_point, x.shape(), {}), DType::kU8));
  n.SetOutput(1, scale);
  n.SetOutput(2, b.Convert(zero_point, DType::kU8));
  return absl::OkStatus();
}

// The dimension of an operand along which a list of scales or zero points is given: rows of a left matrix, columns of a
// right one. Convolutions use the dimension of the channels.
constexpr int64_t kColumns = -1, kRows = -2;

// Input i broadcast to `shape`. The input has one element, one for each index of dimension `dim`, or the rank of
// `shape` and extents that broadcast to it.
absl::StatusOr<Value> PerLine(OnnxNode& n, int i, const Shape& shape, int64_t dim) {
  Builder& b = n.b();
  Value value = n.input(i);
  RETURN_IF_ERROR(b.status());
  if (dim < 0) dim += shape.rank();
  if (value.shape().num_elements() == 1) return b.Broadcast(b.Reshape(value, Shape()), shape, {});
  if (shape.has_dim(dim) && value.shape() == Shape({shape[dim]})) return b.BroadcastAlong(value, shape, dim);
  bool broadcasts = value.shape().rank() == shape.rank() && shape.rank() > 1;
  for (int64_t d = 0; broadcasts && d < shape.rank(); ++d)
    broadcasts = value.shape()[d] == 1 || value.shape()[d] == shape[d];
  if (broadcasts) return BroadcastTo(b, value, shape);
  return n.Error() << "input " << i << " is " << value.type() << ", expected one element, or one for each index of "
                   << "dimension " << dim << " of shape " << shape;
}

// Input i in i32, minus its zero point, which is input `zero` if present.
absl::StatusOr<Value> Centered(OnnxNode& n, int i, int zero, int64_t dim) {
  const Value x = n.input(i);
  RETURN_IF_ERROR(n.b().status());
  if (!IsByte(x.dtype())) return n.Error() << "input " << i << " is " << x.type() << ", expected i8 or u8";
  const Value wide = n.b().Convert(x, DType::kI32);
  if (!n.has_input(zero)) return wide;
  if (n.type(zero).dtype != x.dtype())
    return n.Error() << "zero point " << n.type(zero) << " of input " << i << ", which is " << x.type();
  ASSIGN_OR_RETURN(const Value zeros, PerLine(n, zero, x.shape(), dim));
  return n.b().Sub(wide, n.b().Convert(zeros, DType::kI32));
}

absl::Status MatMulInteger(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Value x, Centered(n, 0, 2, kRows));
  ASSIGN_OR_RETURN(const Value y, Centered(n, 1, 3, kColumns));
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const Value product, NumpyMatMul(n, x, y));
  n.SetOutput(0, product);
  return absl::OkStatus();
}

// A convolution of integers, computed in a float type that holds its sums exactly: differences of bytes are at most
// 255.
absl::StatusOr<Value> ConvolveIntegers(OnnxNode& n, Value x, Value filter) {
  RETURN_IF_ERROR(n.b().status());
  if (filter.shape().rank() < 3) return n.Error() << "the filter is " << filter.type() << ", expected rank 3 or more";
  const int64_t terms = filter.shape().num_elements() / std::max<int64_t>(filter.shape()[0], 1);
  const DType dtype = terms * 255 * 255 < int64_t{1} << 24 ? DType::kF32 : DType::kF64;
  ASSIGN_OR_RETURN(const Value y, Convolve(n, n.b().Convert(x, dtype), n.b().Convert(filter, dtype)));
  return n.b().Convert(y, DType::kI32);
}

absl::Status ConvInteger(OnnxNode& n) {
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  ASSIGN_OR_RETURN(const Value x, Centered(n, 0, 2, 0));
  ASSIGN_OR_RETURN(const Value filter, Centered(n, 1, 3, 0));
  ASSIGN_OR_RETURN(const Value y, ConvolveIntegers(n, x, filter));
  n.SetOutput(0, y);
  return absl::OkStatus();
}

// Quantises an i32 product. Inputs 1 and 4 are the scales of its operands, inputs 6 and 7 the scale and the zero point
// of the result. Lists of scales apply along `x_dim` and `y_dim` of the product.
absl::StatusOr<Value> Requantize(OnnxNode& n, Value product, int64_t x_dim, int64_t y_dim) {
  Builder& b = n.b();
  const Shape& shape = product.shape();
  const DType dtype = n.type(7).dtype;
  if (!IsByte(dtype)) return n.Error() << "zero point of the result is " << n.type(7) << ", expected i8 or u8";
  ASSIGN_OR_RETURN(Value x_scale, PerLine(n, 1, shape, x_dim));
  ASSIGN_OR_RETURN(Value y_scale, PerLine(n, 4, shape, y_dim));
  ASSIGN_OR_RETURN(Value scale, PerLine(n, 6, shape, x_dim));
  ASSIGN_OR_RETURN(const Value zero_point, PerLine(n, 7, shape, x_dim));
  for (Value* each : {&x_scale, &y_scale, &scale}) *each = b.Convert(*each, DType::kF32);
  const Value factor = b.Div(b.Mul(x_scale, y_scale), scale);
  return RoundTo(b, b.Mul(b.Convert(product, DType::kF32), factor), zero_point, dtype);
}

absl::Status QLinearMatMul(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Value x, Centered(n, 0, 2, kRows));
  ASSIGN_OR_RETURN(const Value y, Centered(n, 3, 5, kColumns));
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const Value product, NumpyMatMul(n, x, y));
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const Value result, Requantize(n, product, kRows, kColumns));
  n.SetOutput(0, result);
  return absl::OkStatus();
}

absl::Status QLinearConv(OnnxNode& n) {
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  ASSIGN_OR_RETURN(const Value x, Centered(n, 0, 2, 0));
  ASSIGN_OR_RETURN(const Value filter, Centered(n, 3, 5, 0));
  ASSIGN_OR_RETURN(Value y, ConvolveIntegers(n, x, filter));
  RETURN_IF_ERROR(n.b().status());
  if (n.has_input(8)) {
    if (n.type(8) != TensorType{DType::kI32, Shape({y.shape()[1]})})
      return n.Error() << "bias is " << n.type(8) << ", expected " << TensorType{DType::kI32, Shape({y.shape()[1]})};
    y = n.b().Add(y, n.b().BroadcastAlong(n.input(8), y.shape(), 1));
  }
  ASSIGN_OR_RETURN(const Value result, Requantize(n, y, 0, 1));
  n.SetOutput(0, result);
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> QuantizationOps() {
  return {
      {"QuantizeLinear", 10, kNoEnd, 2, 3, QuantizeLinear},
      {"DequantizeLinear", 10, kNoEnd, 2, 3, DequantizeLinear},
      {"DynamicQuantizeLinear", 11, kNoEnd, 1, 1, DynamicQuantizeLinear},
      {"MatMulInteger", 10, kNoEnd, 2, 4, MatMulInteger},
      {"ConvInteger", 10, kNoEnd, 2, 4, ConvInteger},
      {"QLinearMatMul", 10, kNoEnd, 8, 8, QLinearMatMul},
      {"QLinearConv", 10, kNoEnd, 8, 9, QLinearConv},
  };
}

}  // namespace lockstep
