// Batch normalisation, normalisation over neighbouring channels, and softmax.

#include <algorithm>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// The training form, for statistics that are not initializers. ToInferenceForm has converted the others.
absl::Status BatchNormTraining(OnnxNode& n, double epsilon, double momentum) {
  Builder& b = n.b();
  const std::vector<Value> batch =
      b.Ops("batch_norm_training", {n.input(0), n.input(1), n.input(2)}, {{"epsilon", epsilon}});
  n.SetOutput(0, batch[0]);
  for (int i = 1; i < 3; ++i) {
    const Value before = n.input(2 + i);
    n.SetOutput(i, b.Add(b.Scale(before, momentum), b.Scale(batch[static_cast<size_t>(i)], 1 - momentum)));
  }
  return absl::OkStatus();
}

absl::Status BatchNormalization(OnnxNode& n) {
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  n.Ignore("is_test");  // before opset 7; the pass training-mode decides about training
  if (n.opset() < 9 && !n.Flag("spatial", true))
    return n.Unsupported() << "statistics for each position (spatial=0) are not supported";
  const double epsilon = n.Float("epsilon", 1e-5f), momentum = n.Float("momentum", 0.9f);
  if (n.opset() >= 14 && n.Flag("training_mode", false)) return BatchNormTraining(n, epsilon, momentum);
  n.SetOutput(0, n.b().Op("batch_norm_inference", n.inputs(), {{"epsilon", epsilon}, {"momentum", momentum}}));
  return absl::OkStatus();
}

// x / (bias + alpha / size * the sum of squares of `size` neighbouring channels)^beta; 16-bit floats are computed in
// f32, because their squares overflow early.
absl::Status LocalResponse(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 2));
  const DType dtype = n.type(0).dtype;
  const Value x = b.Convert(n.input(0), IsFloat(dtype) && SizeOf(dtype) == 2 ? DType::kF32 : dtype);
  const double alpha = n.Float("alpha", 1e-4f), beta = n.Float("beta", 0.75f), bias = n.Float("bias", 1);
  const int64_t size = n.Int("size", 0);
  if (size < 1 || size > int64_t{1} << 20)
    return n.Error() << "attribute size is " << size << ", expected from 1 to 2^20";
  Ints low(static_cast<size_t>(x.shape().rank()), 0), high = low;
  low[1] = (size - 1) / 2;
  high[1] = size - 1 - low[1];
  const Value windows = b.Op("windows", {b.Pad(b.Mul(x, x), low, high)},
                             {{"dim", int64_t{1}}, {"window", Ints{size}}, {"stride", Ints{1}}, {"dilation", Ints{1}}});
  const Value base = b.AddScalar(b.Scale(b.ReduceSum(windows, {1}), alpha / static_cast<double>(size)), bias);
  n.SetOutput(0, b.Convert(b.Div(x, b.Op("pow", {base, b.SplatLike(beta, base)})), dtype));
  return absl::OkStatus();
}

absl::Status Softmax(OnnxNode& n, std::string_view op) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  const int64_t rank = x.shape().rank();
  if (n.opset() >= 13) {
    ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", -1), rank));
    n.SetOutput(0, b.Op(op, {x}, {{"dim", axis}}));
    return absl::OkStatus();
  }
  // Before opset 13, the axis and all dimensions after it count as one.
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 1), rank));
  if (axis == rank - 1) {
    n.SetOutput(0, b.Op(op, {x}, {{"dim", axis}}));
    return absl::OkStatus();
  }
  Ints merged(x.shape().dims().begin(), x.shape().dims().begin() + axis);
  int64_t count = 1;
  for (int64_t i = axis; i < rank; ++i) count *= x.shape()[i];
  merged.push_back(count);
  n.SetOutput(0, b.Reshape(b.Op(op, {b.Reshape(x, Shape(merged))}, {{"dim", axis}}), x.shape()));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> NormalizationOps() {
  return {
      {"BatchNormalization", 1, kNoEnd, 5, 5, BatchNormalization},
      {"LRN", 1, kNoEnd, 1, 1, LocalResponse},
      {"Softmax", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Softmax(n, "softmax"); }},
      {"LogSoftmax", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Softmax(n, "log_softmax"); }},
  };
}

}  // namespace lockstep
