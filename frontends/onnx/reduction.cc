// Reductions over several axes, and operators along one axis.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/torch_formulas.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// The reduced axes: an attribute before opset `axes_input_since`, input 1 from then on.
absl::StatusOr<Ints> ReducedDims(OnnxNode& n, int64_t axes_input_since, const Shape& shape) {
  ASSIGN_OR_RETURN(std::optional<Ints> axes, n.IntsAttrOrInput("axes", axes_input_since, 1));
  const bool empty_is_none = n.opset() >= axes_input_since && n.Flag("noop_with_empty_axes", false);
  if (axes && !axes->empty()) return n.Axes(*axes, shape.rank());
  Ints all;
  for (int64_t i = 0; !empty_is_none && i < shape.rank(); ++i) all.push_back(i);
  return all;
}

// y = after(reduce(before(x), dims), number of elements reduced).
template <typename Before, typename After>
absl::Status Reduce(OnnxNode& n, int64_t axes_input_since, std::string_view op, Before before, After after) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  const bool keep = n.Flag("keepdims", true);
  ASSIGN_OR_RETURN(const Ints dims, ReducedDims(n, axes_input_since, x.shape()));
  int64_t count = 1;
  Shape kept = x.shape();
  for (int64_t dim : dims) {
    count *= x.shape()[dim];
    kept = kept.WithDim(dim, 1);
  }
  Value result = before(b, x);
  if (!dims.empty()) result = b.Op(op, {result}, {{"dims", dims}});
  result = after(b, result, count);
  n.SetOutput(0, keep ? b.Reshape(result, kept) : result);
  return absl::OkStatus();
}

Value Same(Builder&, Value x) { return x; }
Value IdentityAfter(Builder&, Value x, int64_t) { return x; }
Value Square(Builder& b, Value x) { return b.Mul(x, x); }
Value Abs(Builder& b, Value x) { return b.Unary("abs", x); }
Value LogAfter(Builder& b, Value x, int64_t) { return b.Log(x); }
Value NormAfter(Builder& b, Value x, int64_t) { return NormOf(b, x); }

// The mean, given the sum. A mean of integers is truncated, so the sum is divided; a float sum is multiplied by 1 /
// count.
Value Divide(Builder& b, Value sum, int64_t count) {
  if (!sum || count == 1) return sum;
  if (!IsFloat(sum.dtype())) return b.Div(sum, b.SplatLike(static_cast<double>(count), sum));
  return b.Scale(sum, 1.0 / static_cast<double>(count));
}

absl::Status ReduceSum(OnnxNode& n) { return Reduce(n, 13, "reduce_sum", Same, IdentityAfter); }

// 16-bit floats are computed in f32: the sum could overflow, and 1 / count has few digits.
absl::Status ReduceMean(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const DType dtype = x.dtype(), wide = IsFloat(dtype) && SizeOf(dtype) == 2 ? DType::kF32 : dtype;
  return Reduce(
      n, 18, "reduce_sum", [wide](Builder& b, Value x) { return b.Convert(x, wide); },
      [dtype](Builder& b, Value sum, int64_t count) { return b.Convert(Divide(b, sum, count), dtype); });
}

// PyTorch's max(dim) and min(dim): among equal elements the gradient goes to the first. In its max() and amax, and in
// ONNX's operators, equal elements share it. The first is found by reductions, because loops fuse these but not argmax.
absl::Status FirstExtremum(OnnxNode& n, std::string_view op) {
  Builder& b = n.b();
  const Value x = n.input(0);
  const bool keep = n.Flag("keepdims", true);
  ASSIGN_OR_RETURN(const Ints dims, ReducedDims(n, 18, x.shape()));
  constexpr int64_t kMostExtent = std::numeric_limits<int32_t>::max();
  if (dims.size() != 1 || x.shape()[dims[0]] >= kMostExtent)
    return n.Unsupported() << "dimensions " << ListToString(dims) << " of " << x.type() << ", expected one";
  const Value extremum = b.BroadcastOver(b.Op(op, {x}, {{"dims", dims}}), x.shape(), dims);
  const Value is_extreme = b.Op("or", {b.Compare(x, extremum, "eq"), b.Compare(x, x, "ne")});  // also NaN
  const TensorType places{DType::kI32, x.shape()};
  const Value place = b.Select(is_extreme, b.Iota(places, dims[0]), b.Splat(kMostExtent, places));
  const Value result = b.Pick(x, b.Op("reduce_min", {place}, {{"dims", dims}}), dims[0]);
  n.SetOutput(0, keep ? b.Reshape(result, x.shape().WithDim(dims[0], 1)) : result);
  return absl::OkStatus();
}

// For bool, the maximum is "any" and the minimum is "all".
absl::Status ReduceExtremum(OnnxNode& n, std::string_view op) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const std::string made_of = n.TorchOperator();
  if ((made_of == "max.dim" || made_of == "min.dim") && IsFloat(x.dtype()) && x.shape().rank() > 0)
    return FirstExtremum(n, op);
  if (x.dtype() != DType::kBool) return Reduce(n, 18, op, Same, IdentityAfter);
  return Reduce(
      n, 18, op, [](Builder& b, Value x) { return b.Convert(x, DType::kU8); },
      [](Builder& b, Value x, int64_t) { return b.Convert(x, DType::kBool); });
}

absl::Status ReduceMax(OnnxNode& n) { return ReduceExtremum(n, "reduce_max"); }
absl::Status ReduceMin(OnnxNode& n) { return ReduceExtremum(n, "reduce_min"); }
absl::Status ReduceProd(OnnxNode& n) { return Reduce(n, 18, "reduce_prod", Same, IdentityAfter); }
absl::Status ReduceL1(OnnxNode& n) { return Reduce(n, 18, "reduce_sum", Abs, IdentityAfter); }
absl::Status ReduceL2(OnnxNode& n) { return Reduce(n, 18, "reduce_sum", Square, NormAfter); }
absl::Status ReduceSumSquare(OnnxNode& n) { return Reduce(n, 18, "reduce_sum", Square, IdentityAfter); }
absl::Status ReduceLogSum(OnnxNode& n) { return Reduce(n, 18, "reduce_sum", Same, LogAfter); }

// log(sum(exp(x))), without overflow: the largest element, if it is finite, is subtracted first.
absl::Status ReduceLogSumExp(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  const bool keep = n.Flag("keepdims", true);
  ASSIGN_OR_RETURN(const Ints dims, ReducedDims(n, 18, x.shape()));
  if (!IsFloat(x.dtype())) return n.Error() << "input is " << x.type() << ", expected floats";
  Shape kept = x.shape();
  for (int64_t dim : dims) kept = kept.WithDim(dim, 1);
  Value result = x;
  if (!dims.empty()) {
    const Value largest = b.ReduceMax(x, dims);
    const Value is_finite = b.Compare(b.Unary("abs", largest), b.SplatLike(HUGE_VAL, largest), "lt");
    const Value shift = b.Select(is_finite, largest, b.SplatLike(0, largest));
    const Value rest = b.Exp(b.Sub(x, b.BroadcastOver(shift, x.shape(), dims)));
    result = b.Add(b.Log(b.ReduceSum(rest, dims)), shift);
  }
  n.SetOutput(0, keep ? b.Reshape(result, kept) : result);
  return absl::OkStatus();
}

absl::Status Arg(OnnxNode& n, std::string_view op) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  const bool last = n.Flag("select_last_index", false), keep = n.Flag("keepdims", true);
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
  const Value result = b.Op(op, {x}, {{"dim", axis}, {"last", last}});
  n.SetOutput(0, keep ? b.Reshape(result, x.shape().WithDim(axis, 1)) : result);
  return absl::OkStatus();
}

absl::Status ArgMax(OnnxNode& n) { return Arg(n, "argmax"); }
absl::Status ArgMin(OnnxNode& n) { return Arg(n, "argmin"); }

// The results are sorted even if the attribute sorted is false.
absl::Status TopK(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  int64_t k = n.Int("k", -1);
  if (n.opset() >= 10) {
    ASSIGN_OR_RETURN(const Ints ks, n.IntsInput(1));
    if (ks.size() != 1) return n.Error() << "k is " << ListToString(ks) << ", expected one number";
    k = ks[0];
  }
  n.Ignore("sorted");
  const bool largest = n.Flag("largest", true);
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", -1), x.shape().rank()));
  const std::vector<Value> results = b.Ops("top_k", {x}, {{"dim", axis}, {"k", k}, {"largest", largest}});
  n.SetOutput(0, results[0]);
  n.SetOutput(1, results[1]);
  return absl::OkStatus();
}

absl::Status Cumulate(OnnxNode& n, std::string_view op) {
  ASSIGN_OR_RETURN(const Ints axes, n.IntsInput(1));
  if (axes.size() != 1) return n.Error() << "axis " << ListToString(axes) << ", expected one axis";
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(axes[0], x.shape().rank()));
  const bool exclusive = n.Flag("exclusive", false), reverse = n.Flag("reverse", false);
  n.SetOutput(0, n.b().Op(op, {x}, {{"dim", axis}, {"exclusive", exclusive}, {"reverse", reverse}}));
  return absl::OkStatus();
}

absl::Status CumSum(OnnxNode& n) { return Cumulate(n, "cumulative_sum"); }
absl::Status CumProd(OnnxNode& n) { return Cumulate(n, "cumulative_prod"); }

}  // namespace

std::vector<OnnxOp> ReductionOps() {
  return {
      {"ReduceSum", 1, 12, 1, 1, ReduceSum},
      {"ReduceSum", 13, kNoEnd, 1, 2, ReduceSum},
      {"ReduceMean", 1, 17, 1, 1, ReduceMean},
      {"ReduceMean", 18, kNoEnd, 1, 2, ReduceMean},
      {"ReduceMax", 1, 17, 1, 1, ReduceMax},
      {"ReduceMax", 18, kNoEnd, 1, 2, ReduceMax},
      {"ReduceMin", 1, 17, 1, 1, ReduceMin},
      {"ReduceMin", 18, kNoEnd, 1, 2, ReduceMin},
      {"ReduceProd", 1, 17, 1, 1, ReduceProd},
      {"ReduceProd", 18, kNoEnd, 1, 2, ReduceProd},
      {"ReduceL1", 1, 17, 1, 1, ReduceL1},
      {"ReduceL1", 18, kNoEnd, 1, 2, ReduceL1},
      {"ReduceL2", 1, 17, 1, 1, ReduceL2},
      {"ReduceL2", 18, kNoEnd, 1, 2, ReduceL2},
      {"ReduceSumSquare", 1, 17, 1, 1, ReduceSumSquare},
      {"ReduceSumSquare", 18, kNoEnd, 1, 2, ReduceSumSquare},
      {"ReduceLogSum", 1, 17, 1, 1, ReduceLogSum},
      {"ReduceLogSum", 18, kNoEnd, 1, 2, ReduceLogSum},
      {"ReduceLogSumExp", 1, 17, 1, 1, ReduceLogSumExp},
      {"ReduceLogSumExp", 18, kNoEnd, 1, 2, ReduceLogSumExp},
      {"ArgMax", 1, kNoEnd, 1, 1, ArgMax},
      {"ArgMin", 1, kNoEnd, 1, 1, ArgMin},
      {"TopK", 1, 9, 1, 1, TopK},
      {"TopK", 10, kNoEnd, 2, 2, TopK},
      {"CumSum", 11, kNoEnd, 2, 2, CumSum},
      {"CumProd", 26, kNoEnd, 2, 2, CumProd},
  };
}

}  // namespace lockstep
