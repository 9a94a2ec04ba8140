// Losses of scores or log-probabilities [N, C, ...] against classes [N, ...]. A class outside [0, C) that is not the
// ignored one is an error at run time. PyTorch's cross entropy also takes probabilities [N, C, ...], which its exporter
// writes in place of the classes.

#include <cstdlib>
#include <numeric>
#include <string>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Returns an error if there are weights, but not one for each class.
absl::Status CheckWeights(OnnxNode& n, Value x) {
  if (n.has_input(2) && n.type(2) != TensorType{x.dtype(), Shape({x.shape()[1]})})
    return n.Error() << "weights are " << n.type(2) << ", expected " << TensorType{x.dtype(), Shape({x.shape()[1]})};
  return absl::OkStatus();
}

absl::Status CheckClasses(OnnxNode& n, Value x, Value classes) {
  if (x.shape().rank() < 2 || classes.shape() != x.shape().Without({1}))
    return n.Error() << "scores " << x.type() << " and classes " << classes.type()
                     << ", expected [N, C, ...] and [N, ...]";
  if (classes.dtype() != DType::kI32 && classes.dtype() != DType::kI64)
    return n.Error() << "classes are " << classes.type() << ", expected i32 or i64";
  return CheckWeights(n, x);
}

// The losses [N, ...] reduced as the node says. With weights, a mean is the sum divided by the sum of the weights.
absl::StatusOr<Value> Reduced(OnnxNode& n, Value losses, Value weights) {
  Builder& b = n.b();
  const std::string reduction = n.String("reduction", "mean");
  if (reduction != "none" && reduction != "sum" && reduction != "mean")
    return n.Error() << "attribute reduction is '" << reduction << "', expected none, sum or mean";
  if (reduction == "none" || !losses) return losses;
  Ints all(static_cast<size_t>(losses.shape().rank()));
  std::iota(all.begin(), all.end(), 0);
  if (reduction == "sum") return b.ReduceSum(losses, all);
  return weights ? b.Div(b.ReduceSum(losses, all), b.ReduceSum(weights, all)) : b.ReduceMean(losses, all);
}

// `of_classes` times the weights of the classes, if there are any.
Value Weighted(OnnxNode& n, Value of_classes) {
  return n.has_input(2) ? n.b().Mul(of_classes, n.b().BroadcastAlong(n.input(2), of_classes.shape(), 1)) : of_classes;
}

// PyTorch's label_smoothing, which lockstep/_torch/notes.py writes to the node's metadata; 0 in other files.
double Smoothing(const OnnxNode& n) {
  return std::strtod(std::string(n.Metadata("lockstep.label_smoothing")).c_str(), nullptr);
}

// -log_prob of the class, times its weight, reduced as the node says. With a smoothing s, it is 1 - s times that, plus
// s times the mean of the same over all classes.
absl::StatusOr<Value> LossOf(OnnxNode& n, Value log_prob, Value classes) {
  Builder& b = n.b();
  const bool ignores = n.has_attr("ignore_index");
  Value is_ignored;
  if (ignores) {
    is_ignored = b.Compare(classes, b.SplatLike(static_cast<double>(n.Int("ignore_index", 0)), classes), "eq");
    classes = b.Select(is_ignored, b.SplatLike(0, classes), classes);
  }
  classes =
      b.Op("within", {classes}, {{"low", int64_t{0}}, {"high", log_prob.shape()[1]}, {"what", std::string("label")}});
  Value loss = b.Neg(b.Pick(log_prob, classes, 1)), weight;
  if (n.has_input(2)) {
    weight = b.Pick(b.BroadcastAlong(n.input(2), log_prob.shape(), 1), classes, 1);
    loss = b.Mul(loss, weight);
  } else if (ignores) {
    weight = b.SplatLike(1, loss);
  }
  if (const double s = Smoothing(n); s != 0) {
    const Value of_all_classes = b.Neg(b.ReduceMean(Weighted(n, log_prob), {1}));
    loss = b.Add(b.Scale(loss, 1 - s), b.Scale(of_all_classes, s));
  }
  if (ignores) {
    const Value zero = b.SplatLike(0, loss);
    loss = b.Select(is_ignored, zero, loss);
    weight = b.Select(is_ignored, zero, weight);
  }
  return Reduced(n, loss, weight);
}

absl::Status NegativeLogLikelihoodLoss(OnnxNode& n) {
  const Value x = n.input(0), classes = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  RETURN_IF_ERROR(CheckClasses(n, x, classes));
  ASSIGN_OR_RETURN(const Value loss, LossOf(n, x, classes));
  n.SetOutput(0, loss);
  return absl::OkStatus();
}

// The common case as one op, which has a kernel. Null if the op cannot express the node's attributes.
Value FusedCrossEntropy(OnnxNode& n, Value scores, Value classes) {
  const std::string reduction = n.String("reduction", "mean");
  const double examples = static_cast<double>(classes.shape().num_elements());
  if (n.has_input(2) || n.has_attr("ignore_index") || Smoothing(n) != 0 || n.has_output(1) || examples == 0)
    return Value();
  if (reduction != "sum" && reduction != "mean") return Value();
  return n.b().Op("softmax_cross_entropy", {scores, classes}, {{"scale", reduction == "sum" ? 1.0 : 1.0 / examples}});
}

// The sum over classes of -log_prob times probability and weight. As in PyTorch, a mean is over all rows, regardless of
// weights.
absl::StatusOr<Value> LossOfProbabilities(OnnxNode& n, Value log_prob, Value probabilities) {
  Builder& b = n.b();
  n.Ignore("ignore_index");  // only for classes
  RETURN_IF_ERROR(CheckWeights(n, log_prob));
  if (const double s = Smoothing(n); s != 0)
    probabilities = b.AddScalar(b.Scale(probabilities, 1 - s), s / static_cast<double>(log_prob.shape()[1]));
  return Reduced(n, b.Neg(b.ReduceSum(Weighted(n, b.Mul(log_prob, probabilities)), {1})), Value());
}

absl::Status SoftmaxCrossEntropyLoss(OnnxNode& n) {
  const Value x = n.input(0), target = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  const bool has_probabilities = target.type() == x.type() && x.shape().rank() >= 2;
  if (!has_probabilities) {
    RETURN_IF_ERROR(CheckClasses(n, x, target));
    if (const Value fused = FusedCrossEntropy(n, x, target)) {
      n.SetOutput(0, fused);
      return absl::OkStatus();
    }
  }
  const Value log_prob = n.b().Op("log_softmax", {x}, {{"dim", int64_t{1}}});
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const Value loss,
                   has_probabilities ? LossOfProbabilities(n, log_prob, target) : LossOf(n, log_prob, target));
  n.SetOutput(0, loss);
  n.SetOutput(1, log_prob);
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> LossOps() {
  return {
      {"NegativeLogLikelihoodLoss", 12, kNoEnd, 2, 3, NegativeLogLikelihoodLoss},
      {"SoftmaxCrossEntropyLoss", 12, kNoEnd, 2, 3, SoftmaxCrossEntropyLoss},
  };
}

}  // namespace lockstep
