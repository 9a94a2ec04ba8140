// Losses of scores or log-probabilities [N, C, ...] against classes [N, ...]. The class's element is picked by
// comparing a count along C with the class. A class outside [0, C) that is not to be ignored is an error when the
// program runs.

#include <numeric>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

absl::Status CheckClasses(OnnxNode& n, Value x, Value classes) {
  if (x.shape().rank() < 2 || classes.shape() != x.shape().Without({1}))
    return n.Error() << "scores " << x.type() << " and classes " << classes.type()
                     << ", expected [N, C, ...] and [N, ...]";
  if (classes.dtype() != DType::kI32 && classes.dtype() != DType::kI64)
    return n.Error() << "classes are " << classes.type() << ", expected i32 or i64";
  if (n.has_input(2) && n.type(2) != TensorType{x.dtype(), Shape({x.shape()[1]})})
    return n.Error() << "weights are " << n.type(2) << ", expected " << TensorType{x.dtype(), Shape({x.shape()[1]})};
  return absl::OkStatus();
}

// -log_prob of the class, times its weight, reduced as the node says.
absl::StatusOr<Value> LossOf(OnnxNode& n, Value log_prob, Value classes) {
  Builder& b = n.b();
  const std::string reduction = n.String("reduction", "mean");
  if (reduction != "none" && reduction != "sum" && reduction != "mean")
    return n.Error() << "attribute reduction is '" << reduction << "', expected none, sum or mean";
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
  if (ignores) {
    const Value zero = b.SplatLike(0, loss);
    loss = b.Select(is_ignored, zero, loss);
    weight = b.Select(is_ignored, zero, weight);
  }
  if (reduction == "none" || !loss) return loss;
  Ints all(static_cast<size_t>(loss.shape().rank()));
  std::iota(all.begin(), all.end(), 0);
  if (reduction == "sum") return b.ReduceSum(loss, all);
  return weight ? b.Div(b.ReduceSum(loss, all), b.ReduceSum(weight, all)) : b.ReduceMean(loss, all);
}

absl::Status NegativeLogLikelihoodLoss(OnnxNode& n) {
  const Value x = n.input(0), classes = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  RETURN_IF_ERROR(CheckClasses(n, x, classes));
  ASSIGN_OR_RETURN(const Value loss, LossOf(n, x, classes));
  n.SetOutput(0, loss);
  return absl::OkStatus();
}

// The common case is one op, which has a kernel. Null if the node says more than that can.
Value FusedCrossEntropy(OnnxNode& n, Value scores, Value classes) {
  const std::string reduction = n.String("reduction", "mean");
  const double examples = static_cast<double>(classes.shape().num_elements());
  if (n.has_input(2) || n.has_attr("ignore_index") || n.has_output(1) || examples == 0) return Value();
  if (reduction != "sum" && reduction != "mean") return Value();
  return n.b().Op("softmax_cross_entropy", {scores, classes}, {{"scale", reduction == "sum" ? 1.0 : 1.0 / examples}});
}

absl::Status SoftmaxCrossEntropyLoss(OnnxNode& n) {
  const Value x = n.input(0), classes = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  RETURN_IF_ERROR(CheckClasses(n, x, classes));
  if (const Value fused = FusedCrossEntropy(n, x, classes)) {
    n.SetOutput(0, fused);
    return absl::OkStatus();
  }
  const Value log_prob = n.b().Op("log_softmax", {x}, {{"dim", int64_t{1}}});
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const Value loss, LossOf(n, log_prob, classes));
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
