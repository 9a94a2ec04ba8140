#include "passes/training/clipping.h"

#include <algorithm>
#include <numeric>

#include "core/builder.h"

namespace lockstep::passes {
namespace {

// Returns the dtype to compute in: the range of 16-bit floats is too small for squares.
DType ComputedFor(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

Value SumOfSquares(Builder& b, Value x, DType dtype) {
  if (!x) return x;
  std::vector<int64_t> dims(static_cast<size_t>(x.shape().rank()));
  std::iota(dims.begin(), dims.end(), 0);
  const Value wide = b.Convert(x, ComputedFor(x.dtype()));
  return b.Convert(b.ReduceSum(b.Mul(wide, wide), dims), dtype);
}

// Returns x times min(1, limit / (norm + 1e-6)).
Value Scaled(Builder& b, Value x, Value norm, Value limit) {
  if (!x || !norm) return {};
  const Value factor = b.Div(b.Convert(limit, norm.dtype()), b.AddScalar(norm, 1e-6));
  const Value at_most_one = b.Convert(b.Min(factor, b.SplatLike(1, factor)), ComputedFor(x.dtype()));
  const Value wide = b.Convert(x, ComputedFor(x.dtype()));
  return b.Convert(b.Mul(wide, b.Broadcast(at_most_one, x.shape(), {})), x.dtype());
}

Value Clamped(Builder& b, Value x, Value limit) {
  const Value most = b.Broadcast(b.Convert(limit, x.dtype()), x.shape(), {});
  return b.Min(b.Max(x, b.Neg(most)), most);
}

}  // namespace

absl::StatusOr<std::vector<Value>> ClipGradients(Graph& graph, std::vector<Value> gradients, const ClippingSpec& spec) {
  if (spec.by.empty()) return gradients;
  if (spec.by != "value" && spec.by != "norm" && spec.by != "global_norm")
    return InvalidArgument() << "clipping is by '" << spec.by << "', expected value, norm or global_norm";
  ASSIGN_OR_RETURN(const Value limit, graph.AddSetting("clipping/limit", {spec.limit, Above(0)}));
  Builder b(graph, nullptr, "clipping");
  DType widest = DType::kF32;
  for (Value gradient : gradients) {
    if (gradient.dtype() == DType::kF64) widest = DType::kF64;
  }
  Value norm;
  if (spec.by == "global_norm") {
    Value sum;
    for (Value gradient : gradients) {
      const Value own = SumOfSquares(b, gradient, widest);
      sum = sum ? b.Add(sum, own) : own;
    }
    norm = b.Sqrt(sum);
    RETURN_IF_ERROR(b.status());
    graph.SetName(norm, "gradient_norm");
    RETURN_IF_ERROR(graph.AddResult("gradient_norm", norm));
  }
  for (Value& gradient : gradients) {
    if (spec.by == "value") gradient = Clamped(b, gradient, limit);
    else gradient = Scaled(b, gradient, norm ? norm : b.Sqrt(SumOfSquares(b, gradient, widest)), limit);
  }
  RETURN_IF_ERROR(b.status());
  return gradients;
}

}  // namespace lockstep::passes
