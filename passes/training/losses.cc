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
  return {
      .name = "softmax_cross_entropy",
      .doc =
          "The mean of -log softmax(logits)[label].\n\n"
          "`exe(image=..., label=...)` gives the labels by the name of their input; a label out of range is an "
          "error that says where.",
      .prediction = {"logits", "a result of the model, f32[batch, classes]", "logits"},
      .target = {"target", "the name of the input that the step gets for the labels, i64[batch], each in [0, classes)",
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
      SoftmaxCrossEntropy(),
      MeanSquaredError(),
      ResultItself(),
  };
  return losses;
}

}  // namespace lockstep::passes
