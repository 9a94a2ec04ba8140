// The losses, a block each. One more is its block, and a line in the list at the end.

#include <cmath>

#include "passes/training/loss.h"

namespace lockstep::passes {
namespace {

// What the targets of a loss between equal tensors are.
absl::StatusOr<TensorType> LikePrediction(const TensorType& prediction) { return prediction; }

LossArgument PredictionOfAnyShape() {
  return {"prediction", "a float result of the model, of any shape with the batch first"};
}

LossArgument WantedValues() {
  return {"target",
          "the name of the input that the step gets for the wanted values, of the prediction's dtype and shape",
          "target"};
}

//===-- softmax_cross_entropy -----------------------------------------------------------------------------------===//
Loss SoftmaxCrossEntropy() {
  return {.name = "softmax_cross_entropy",
          .doc =
              "The mean of -log softmax(logits)[label], over all labels of the global batch.\n\n"
              "`exe(image=..., label=...)` gives the labels by the name of their input; a label out of range is an "
              "error that says where.",
          .prediction = {"logits",
                         "a float result of the model, [batch, classes] or, with a label at each position, [batch, "
                         "classes, ...]",
                         "logits"},
          .target = {"target",
                     "the name of the input that the step gets for the labels, i64[batch] or i64[batch, ...], each in "
                     "[0, classes)",
                     "label"},
          .target_type = [](const TensorType& logits) -> absl::StatusOr<TensorType> {
            if (logits.shape.rank() < 2) return InvalidArgument() << "expected [batch, classes]";
            return TensorType{DType::kI64, logits.shape.Without({1})};
          },
          .build =
              [](const LossContext& c) {
                const auto samples = static_cast<double>(c.target.shape().num_elements());  // of the global batch
                return c.b.Op("softmax_cross_entropy", {c.prediction, c.target}, {{"scale", 1.0 / samples}});
              }};
}

//===-- binary_cross_entropy_with_logits ------------------------------------------------------------------------===//
Loss BinaryCrossEntropyWithLogits() {
  return {
      .name = "binary_cross_entropy_with_logits",
      .doc =
          "The mean of -(target * log sigmoid(logits) + (1 - target) * log(1 - sigmoid(logits))).\n\n"
          "Computed of the logits, so that no sigmoid close to 0 or 1 makes it infinite.",
      .prediction = {"logits", "a float result of the model, of any shape with the batch first", "logits"},
      .target = {"target",
                 "the name of the input that the step gets for the labels or probabilities, of the logits' dtype and "
                 "shape, each in [0, 1]",
                 "target"},
      .target_type = LikePrediction,
      // max(z, 0) - z * t + log(1 + exp(-|z|)). The gradient of max is half at equal operands and that of abs 0, so
      // that at z = 0 it is 1/2 - t, as everywhere sigmoid(z) - t.
      .build = [](const LossContext& c) {
        Builder& b = c.b;
        const Value z = c.prediction;
        const Value hinge = b.Sub(b.Max(z, b.SplatLike(0, z)), b.Mul(z, c.target));
        return c.Mean(b.Add(hinge, b.Unary("log1p", b.Exp(b.Neg(b.Unary("abs", z))))));
      }};
}

//===-- mean_squared_error --------------------------------------------------------------------------------------===//
Loss MeanSquaredError() {
  return {.name = "mean_squared_error",
          .doc = "The mean of (prediction - target)**2 over all elements.",
          .prediction = PredictionOfAnyShape(),
          .target = WantedValues(),
          .target_type = LikePrediction,
          .build = [](const LossContext& c) {
            const Value difference = c.b.Sub(c.prediction, c.target);
            return c.Mean(c.b.Mul(difference, difference));
          }};
}

//===-- huber ---------------------------------------------------------------------------------------------------===//
Loss Huber() {
  return {
      .name = "huber",
      .doc =
          "The mean of d**2 / 2 where d = |prediction - target| is at most delta, else of delta * (d - delta / 2).\n\n"
          "Outliers count in proportion to their distance, not to its square.",
      .prediction = PredictionOfAnyShape(),
      .target = WantedValues(),
      .options = {{"delta", 1.0, false, "where the square goes over into a line", false, Above(0)}},
      .target_type = LikePrediction,
      // q * (d - q / 2) with q = min(d, delta); at d = delta the gradient is delta, however min shares it.
      .build = [](const LossContext& c) {
        Builder& b = c.b;
        const Value d = b.Unary("abs", b.Sub(c.prediction, c.target));
        const Value q = b.Min(d, b.SplatLike(c.option("delta"), d));
        return c.Mean(b.Mul(q, b.Sub(d, b.Scale(q, 0.5))));
      }};
}

//===-- result --------------------------------------------------------------------------------------------------===//
Loss ResultItself() {
  return {.name = "result",
          .doc = "A float scalar that the model itself computes.",
          .prediction = {"name", "the name of the result"},
          .build = [](const LossContext& c) { return c.prediction; }};
}

}  // namespace

const std::vector<Loss>& AllLosses() {
  static const std::vector<Loss> losses = {
      SoftmaxCrossEntropy(), BinaryCrossEntropyWithLogits(), MeanSquaredError(), Huber(), ResultItself(),
  };
  return losses;
}

}  // namespace lockstep::passes
