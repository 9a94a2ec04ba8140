// Losses that measure the distance between a prediction and a target of its shape, element by element.

#include "passes/losses/loss_list.h"

namespace lockstep::passes::losses {
namespace {

// Returns d**2 / 2 where d is at most `knee`, else knee * (d - knee / 2). This is q * (d - q / 2) with q = min(d,
// knee). At d = knee the gradient is knee, however min divides it among its operands. Requires d >= 0.
Formula RoundedDistance(Formula d, double knee) {
  const Formula q = Min(d, knee);
  return q * (d - q * 0.5);
}

}  // namespace

LossArgument PredictionOfAnyShape(std::string what) { return {"prediction", std::move(what)}; }

LossInput WantedValues(std::string what) {
  return {
      {"target", "the name of the input that is added for " + what + ", of the prediction's dtype and shape", "target"},
      [](const TensorType& prediction, const AttributeMap&) { return prediction; }};
}

//===-- mean_squared_error --------------------------------------------------------------------------------------===//
Loss MeanSquaredError() {
  return {.name = "mean_squared_error",
          .doc = "(prediction - target)**2 of each element.",
          .predictions = {PredictionOfAnyShape()},
          .inputs = {WantedValues()},
          .elements = [](const LossContext& c) { return Square(c.prediction() - c.target()); }};
}

//===-- l1 ------------------------------------------------------------------------------------------------------===//
Loss L1() {
  return {.name = "l1",
          .doc = "|prediction - target| of each element. If they are equal, the gradient is 0.",
          .predictions = {PredictionOfAnyShape()},
          .inputs = {WantedValues()},
          .elements = [](const LossContext& c) { return Abs(c.prediction() - c.target()); }};
}

//===-- huber ---------------------------------------------------------------------------------------------------===//
Loss Huber() {
  return {.name = "huber",
          .doc =
              "d**2 / 2 of each element if d = |prediction - target| is at most delta, else delta * (d - delta / "
              "2).\n\nOutliers count in proportion to their distance, not to its square.",
          .predictions = {PredictionOfAnyShape()},
          .inputs = {WantedValues()},
          .options = {OptionDef::Float("delta", 1.0, Above(0), "the distance from which the loss is linear")},
          .elements = [](const LossContext& c) {
            return RoundedDistance(Abs(c.prediction() - c.target()), c.number("delta"));
          }};
}

//===-- smooth_l1 -----------------------------------------------------------------------------------------------===//
Loss SmoothL1() {
  return {.name = "smooth_l1",
          .doc =
              "d**2 / (2 * beta) of each element if d = |prediction - target| is below beta, else d - beta / 2.\n\n"
              "It is `huber` divided by beta: far from the target its slope is 1. With beta 0 it is `l1`.",
          .predictions = {PredictionOfAnyShape()},
          .inputs = {WantedValues()},
          .options = {OptionDef::Float("beta", 1.0, AtLeast(0), "the distance from which the loss is linear")},
          .elements = [](const LossContext& c) {
            const Formula d = Abs(c.prediction() - c.target());
            const double beta = c.number("beta");
            return beta == 0 ? d : RoundedDistance(d, beta) * (1 / beta);
          }};
}

}  // namespace lockstep::passes::losses
