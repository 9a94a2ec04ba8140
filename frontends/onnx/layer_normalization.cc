// Normalisations with statistics per example: over the last dimensions, over groups of channels, or over the positions
// of a channel. They are built as batch normalisation is decomposed: a mean, the mean of squared differences, then one
// elementwise expression, so that fusion makes the same number of loops of them.

#include <algorithm>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

constexpr double kEpsilon = 1e-5f;  // the default of all operators here

Ints DimsFrom(int64_t first, int64_t rank) {
  Ints dims;
  for (int64_t i = first; i < rank; ++i) dims.push_back(i);
  return dims;
}

// The dtype of the statistics: `given` by the attribute stash_type; `used` is the dtype of x if that is wider.
struct Stash {
  DType given, used;
};

absl::StatusOr<Stash> ReadStash(OnnxNode& n, DType x) {
  const absl::StatusOr<DType> given = DTypeFromOnnx(static_cast<int>(n.Int("stash_type", 1)));
  if (!given.ok()) return n.Unsupported() << "attribute stash_type: " << given.status().message();
  if (!IsFloat(*given)) return n.Error() << "attribute stash_type is " << *given << ", expected a float type";
  if (!IsFloat(x)) return n.Error() << "input 0 is of " << x << ", expected a float type";
  return Stash{*given, SizeOf(x) > SizeOf(*given) ? x : *given};
}

struct Normalized {
  Value y;                        // (x - mean) * inverse_deviation
  Value mean, inverse_deviation;  // without the dimensions `dims`
};

Normalized Normalize(Builder& b, Value x, const Ints& dims, double epsilon) {
  Normalized result;
  if (!x) return result;
  result.mean = b.ReduceMean(x, dims);
  const Value centered = b.Sub(x, b.BroadcastOver(result.mean, x.shape(), dims));
  const Value variance = b.ReduceMean(b.Mul(centered, centered), dims);
  result.inverse_deviation = b.Rsqrt(b.AddScalar(variance, epsilon));
  result.y = b.Mul(centered, b.BroadcastOver(result.inverse_deviation, x.shape(), dims));
  return result;
}

// Input i broadcast to x's shape, in x's dtype. Returns an error if it does not broadcast to that shape.
absl::StatusOr<Value> Coefficient(OnnxNode& n, int i, Value x) {
  const Value coefficient = n.input(i);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const Shape shape, BroadcastShapes(n, {x, coefficient}));
  if (shape != x.shape())
    return n.Error() << "input " << i << " is " << coefficient.type() << ", which does not broadcast to " << x.type();
  return n.b().Convert(BroadcastTo(n.b(), coefficient, shape), x.dtype());
}

absl::Status LayerNormalization(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 1));
  const Value x = n.input(0);
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", -1), x.shape().rank()));
  ASSIGN_OR_RETURN(const Stash stash, ReadStash(n, x.dtype()));
  const Ints dims = DimsFrom(axis, x.shape().rank());
  const Normalized normalized = Normalize(b, b.Convert(x, stash.used), dims, n.Float("epsilon", kEpsilon));
  Value y = b.Convert(normalized.y, x.dtype());
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Value scale, Coefficient(n, 1, y));
  y = b.Mul(y, scale);
  if (n.has_input(2)) {
    RETURN_IF_ERROR(b.status());
    ASSIGN_OR_RETURN(const Value bias, Coefficient(n, 2, y));
    y = b.Add(y, bias);
  }
  n.SetOutput(0, y);
  Shape kept = x.shape();
  for (int64_t dim : dims) kept = kept.WithDim(dim, 1);
  if (n.has_output(1)) n.SetOutput(1, b.Reshape(b.Convert(normalized.mean, stash.given), kept));
  if (n.has_output(2)) n.SetOutput(2, b.Reshape(b.Convert(normalized.inverse_deviation, stash.given), kept));
  return absl::OkStatus();
}

absl::Status RmsNormalization(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 1));
  const Value x = n.input(0);
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", -1), x.shape().rank()));
  ASSIGN_OR_RETURN(const Stash stash, ReadStash(n, x.dtype()));
  const Ints dims = DimsFrom(axis, x.shape().rank());
  const Value wide = b.Convert(x, stash.used);
  const Value rsqrt = b.Rsqrt(b.AddScalar(b.ReduceMean(b.Mul(wide, wide), dims), n.Float("epsilon", kEpsilon)));
  const Value y = b.Convert(b.Mul(wide, b.BroadcastOver(rsqrt, x.shape(), dims)), x.dtype());
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Value scale, Coefficient(n, 1, y));
  n.SetOutput(0, b.Mul(y, scale));
  return absl::OkStatus();
}

// y * scale + bias, inputs 1 and 2, one number for each channel of y = [N, C, ...].
absl::StatusOr<Value> PerChannel(OnnxNode& n, Value y) {
  Builder& b = n.b();
  for (int i = 1; i < 3; ++i) {
    const Value coefficient = n.input(i);
    RETURN_IF_ERROR(b.status());
    if (coefficient.shape() != Shape({y.shape()[1]})) {
      return n.Error() << "input " << i << " is " << coefficient.type() << ", expected shape " << Shape({y.shape()[1]});
    }
    const Value all = b.BroadcastAlong(b.Convert(coefficient, y.dtype()), y.shape(), 1);
    y = i == 1 ? b.Mul(y, all) : b.Add(y, all);
  }
  return y;
}

absl::Status GroupNormalization(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  const Value x = n.input(0);
  const int64_t groups = n.Int("num_groups", 0), channels = x.shape()[1];
  if (groups < 1 || channels % groups != 0)
    return n.Error() << "attribute num_groups is " << groups << ", expected a divisor of the channels of " << x.type();
  Stash stash{x.dtype(), x.dtype()};
  if (n.opset() >= 21) {
    ASSIGN_OR_RETURN(stash, ReadStash(n, x.dtype()));
  }
  int64_t rest = channels / groups;
  for (int64_t i = 2; i < x.shape().rank(); ++i) rest *= x.shape()[i];
  const Value grouped = b.Reshape(b.Convert(x, stash.used), Shape({x.shape()[0], groups, rest}));
  Value y = Normalize(b, grouped, {2}, n.Float("epsilon", kEpsilon)).y;
  RETURN_IF_ERROR(b.status());
  // Before opset 21 there is one coefficient per group, from then on one per channel.
  if (n.opset() >= 21) y = b.Reshape(y, x.shape());
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(y, PerChannel(n, y));
  n.SetOutput(0, b.Convert(b.Reshape(y, x.shape()), x.dtype()));
  return absl::OkStatus();
}

absl::Status InstanceNormalization(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Value x = n.input(0);
  ASSIGN_OR_RETURN(const Stash stash, ReadStash(n, x.dtype()));
  const Value y = Normalize(b, b.Convert(x, stash.used), DimsFrom(2, x.shape().rank()), n.Float("epsilon", kEpsilon)).y;
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Value scaled, PerChannel(n, y));
  n.SetOutput(0, b.Convert(scaled, x.dtype()));
  return absl::OkStatus();
}

// `sum`, a sum of magnitudes, with 1 in place of 0. The magnitudes are then all 0, so the quotient 0 / 1 is 0 and the
// gradient of the root is finite.
Value OneForZero(Builder& b, Value sum) {
  return b.Select(b.Compare(sum, b.SplatLike(0, sum), "eq"), b.SplatLike(1, sum), sum);
}

// Here ONNX adds the epsilon to the standard deviation, not to the variance.
absl::Status MeanVarianceNormalization(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Ints dims, n.Axes(n.Ints("axes", {0, 2, 3}), x.shape().rank()));
  const Value centered = b.Sub(x, b.BroadcastOver(b.ReduceMean(x, dims), x.shape(), dims));
  const Value deviation = b.Sqrt(OneForZero(b, b.ReduceMean(b.Mul(centered, centered), dims)));
  n.SetOutput(0, b.Div(centered, b.BroadcastOver(b.AddScalar(deviation, 1e-9), x.shape(), dims)));
  return absl::OkStatus();
}

// x divided by its norm; 0 where the norm is 0.
absl::Status LpNormalization(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  const int64_t p = n.Int("p", 2);
  if (p != 1 && p != 2) return n.Error() << "attribute p is " << p << ", expected 1 or 2";
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", -1), x.shape().rank()));
  const Value sum = b.ReduceSum(p == 1 ? b.Unary("abs", x) : b.Mul(x, x), {axis});
  const Value positive = OneForZero(b, sum);
  n.SetOutput(0, b.Div(x, b.BroadcastOver(p == 1 ? positive : b.Sqrt(positive), x.shape(), {axis})));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> LayerNormalizationOps() {
  return {
      {"LayerNormalization", 17, kNoEnd, 2, 3, LayerNormalization},
      {"RMSNormalization", 23, kNoEnd, 2, 2, RmsNormalization},
      {"GroupNormalization", 18, kNoEnd, 3, 3, GroupNormalization},
      {"InstanceNormalization", 1, kNoEnd, 3, 3, InstanceNormalization},
      {"MeanVarianceNormalization", 9, kNoEnd, 1, 1, MeanVarianceNormalization},
      {"LpNormalization", 1, kNoEnd, 1, 1, LpNormalization},
  };
}

}  // namespace lockstep
