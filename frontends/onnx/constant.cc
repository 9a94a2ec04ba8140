// Values that are known at import: constants and shapes. The importer folds arithmetic on them.

#include <algorithm>
#include <cmath>

#include "absl/numeric/int128.h"
#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

template <typename T>
Tensor ListOf(const std::vector<T>& values) {
  return Tensor::Of<T>(Shape({static_cast<int64_t>(values.size())}), values);
}

absl::Status Constant(OnnxNode& n) {
  Builder& b = n.b();
  if (n.has_attr("value")) {
    ASSIGN_OR_RETURN(Tensor value, n.TensorAttr("value"));
    n.SetOutput(0, b.Constant(std::move(value)));
  } else if (n.has_attr("value_int")) {
    Tensor value(TensorType{DType::kI64, Shape()});
    value.mutable_data<int64_t>()[0] = n.Int("value_int", 0);
    n.SetOutput(0, b.Constant(std::move(value)));
  } else if (n.has_attr("value_float")) {
    n.SetOutput(0, b.Constant(Tensor::Scalar(DType::kF32, n.Float("value_float", 0))));
  } else if (n.has_attr("value_ints")) {
    n.SetOutput(0, b.Constant(ListOf<int64_t>(n.Ints("value_ints"))));
  } else if (n.has_attr("value_floats")) {
    n.SetOutput(0, b.Constant(ListOf<double>(n.Floats("value_floats")).Converted(DType::kF32)));
  } else {
    return n.Unsupported() << "strings and sparse tensors are not supported";
  }
  return absl::OkStatus();
}

absl::Status ConstantOfShape(OnnxNode& n) {
  Tensor value = Tensor::Scalar(DType::kF32, 0);
  if (n.has_attr("value")) {
    ASSIGN_OR_RETURN(value, n.TensorAttr("value"));
    if (value.num_elements() != 1)
      return n.Error() << "attribute value is " << value.type() << ", expected one element";
  }
  ASSIGN_OR_RETURN(std::vector<int64_t> dims, n.IntsInput(0));
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(std::move(dims)));
  n.SetOutput(0, n.b().Broadcast(n.b().Constant(value.Reshaped(Shape())), shape, {}));
  return absl::OkStatus();
}

absl::Status ShapeOf(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const int64_t rank = x.shape().rank();
  const auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank); };
  const int64_t start = clamp(n.Int("start", 0)), end = clamp(n.Int("end", rank));
  std::vector<int64_t> dims;
  for (int64_t i = start; i < end; ++i) dims.push_back(x.shape()[i]);
  n.SetOutput(0, n.b().Constant(ListOf(dims)));
  return absl::OkStatus();
}

absl::Status SizeOfInput(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  n.SetOutput(0, n.b().Constant(Tensor::Of<int64_t>(Shape(), {x.shape().num_elements()})));
  return absl::OkStatus();
}

// The number of elements of the range from start to limit (exclusive) in steps of delta. Integers are computed exactly.
absl::StatusOr<int64_t> LengthOfRange(OnnxNode& n, const Tensor bounds[3]) {
  const double start = bounds[0].At(0), limit = bounds[1].At(0), delta = bounds[2].At(0);
  double count = std::ceil((limit - start) / delta);
  if (IsInteger(bounds[0].dtype()) && delta != 0) {
    const auto exact = [&](int i) { return absl::int128(bounds[i].Converted(DType::kI64).data<int64_t>()[0]); };
    const absl::int128 distance = exact(1) - exact(0), step = exact(2), whole = distance / step;
    const bool has_rest = distance % step != 0 && (distance < 0) == (step < 0);
    count = static_cast<double>(whole + (has_rest ? 1 : 0));
  }
  if (!(count <= static_cast<double>(kMaxElements)))  // also false for NaN
    return n.Error() << "the range from " << start << " to " << limit << " in steps of " << delta << " is not finite";
  return static_cast<int64_t>(std::max(count, 0.0));
}

absl::Status Range(OnnxNode& n) {
  Tensor bounds[3];
  for (int i = 0; i < 3; ++i) {
    ASSIGN_OR_RETURN(bounds[i], n.ConstantInput(i));
    if (bounds[i].num_elements() != 1 || bounds[i].dtype() != bounds[0].dtype()) {
      return n.Error() << "input " << i << " is " << bounds[i].type() << ", expected a scalar of one type for all";
    }
  }
  const DType dtype = bounds[0].dtype();
  if (dtype == DType::kBool) return n.Error() << "dtype is bool, expected numbers";
  ASSIGN_OR_RETURN(const int64_t length, LengthOfRange(n, bounds));
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape({length}));
  Builder& b = n.b();
  const auto all = [&](const Tensor& bound) { return b.Broadcast(b.Constant(bound.Reshaped(Shape())), shape, {}); };
  const Value steps = b.Iota(TensorType{dtype, shape}, 0);
  n.SetOutput(0, b.Add(b.Mul(steps, all(bounds[2])), all(bounds[0])));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> ConstantOps() {
  return {
      {"Constant", 1, kNoEnd, 0, 0, Constant}, {"ConstantOfShape", 9, kNoEnd, 1, 1, ConstantOfShape},
      {"Shape", 1, kNoEnd, 1, 1, ShapeOf},     {"Size", 1, kNoEnd, 1, 1, SizeOfInput},
      {"Range", 11, kNoEnd, 3, 3, Range},
  };
}

}  // namespace lockstep
