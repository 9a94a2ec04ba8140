// Losses between probabilities, element by element.

#include "passes/losses/loss_list.h"

namespace lockstep::passes::losses {
namespace {

// Returns log(1 + exp(-|z|)), which is finite for every z.
Formula LogOfOnePlusExp(Formula z) { return Log1p(Exp(-Abs(z))); }

// Returns pos_weight for each element: one number for all elements, or one for each class (dimension 1).
Formula PositiveWeight(const LossContext& c) {
  Builder& b = c.b();
  const Formula z = c.prediction();
  const Shape& shape = z.value().shape();
  if (shape.rank() > 1 && c.length("pos_weight") != 1)
    return Along(c.list("pos_weight", shape[1], "for each class, or 1 for all of them"), z, 1);
  const Value weight = c.list("pos_weight", 1, "for all elements").value();
  return {b, b.Broadcast(b.Reshape(weight, Shape()), shape, {})};
}

}  // namespace

//===-- binary_cross_entropy_with_logits ------------------------------------------------------------------------===//
Loss BinaryCrossEntropyWithLogits() {
  return {
      .name = "binary_cross_entropy_with_logits",
      .doc =
          "-(pos_weight * target * log sigmoid(logits) + (1 - target) * log(1 - sigmoid(logits))) of each element.\n\n"
          "It is computed from the logits, so that it stays finite if the sigmoid is close to 0 or 1.",
      .predictions = {{"logits", "a float result of the model, of any shape with the batch first", "logits"}},
      .inputs = {{{"target",
                   "the name of the input that is added for the labels or probabilities, of the logits' dtype and "
                   "shape, each in [0, 1]",
                   "target"},
                  [](const TensorType& logits, const AttributeMap&) { return logits; }}},
      .options = {OptionDef::MaybeFloats("pos_weight", AtLeast(0),
                                         "the weight of the positive labels of each class, dimension 1 of the logits; "
                                         "one number is for all classes")},
      // At equal operands the gradient of max is 1/2, and at 0 that of abs is 0. So the gradient at z = 0 is 1/2 - t,
      // which is sigmoid(z) - t as everywhere.
      .elements = [](const LossContext& c) -> LossElements {
        const Formula z = c.prediction(), t = c.target();
        if (!c.has("pos_weight")) return Max(z, 0) - z * t + LogOfOnePlusExp(z);
        const Formula weight = (PositiveWeight(c) - 1) * t + 1;
        return (1 - t) * z + weight * (Max(-z, 0) + LogOfOnePlusExp(z));
      }};
}

//===-- kl_div --------------------------------------------------------------------------------------------------===//
Loss KlDiv() {
  return {.name = "kl_div",
          .doc =
              "target * (log target - prediction) of each element, the Kullback-Leibler divergence of probabilities "
              "from a model that gives their logarithms; 0 * log 0 is 0.\n\n"
              "The divergence of a distribution is the sum over its elements. So the reduction \"batchmean\" is the "
              "mean of the divergences, and \"mean\" is that divided by the size of a distribution.",
          .predictions = {PredictionOfAnyShape(
              "a float result of the model, the logarithms of probabilities, of any shape with the batch first")},
          .inputs = {WantedValues("the probabilities, or, with log_target, their logarithms")},
          .options = {OptionDef::Flag("log_target", false, "true if the target holds logarithms")},
          .has_batchmean = true,
          .elements = [](const LossContext& c) -> LossElements {
            const Formula log_q = c.prediction(), p = c.target();
            if (c.flag("log_target")) return Exp(p) * (p - log_q);
            return Where(p == 0, 0, p * Log(p)) - p * log_q;
          }};
}

}  // namespace lockstep::passes::losses
