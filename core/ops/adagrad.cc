// Adagrad.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

// What this step multiplies with, for each element. In f64, as a count above 2^24 is no f32.
Value LearningRate(ops::Update& u) {
  Builder& b = u.b();
  const double rate = u.rate("learning_rate"), decay = u.rate("lr_decay");
  if (decay == 0) return b.SplatLike(rate, u.w());
  const Value steps_before = b.AddScalar(u.step(), -1);
  const Value divisor = b.AddScalar(b.Scale(steps_before, decay), 1);
  return u.Spread(b.Div(b.SplatLike(rate, divisor), divisor));
}

std::vector<Value> Adagrad(ops::Update& u) {
  Builder& b = u.b();
  const double initial = u.rate("initial_accumulator_value");
  const Value d = u.DecayedGradient();
  const Value sum = b.Add(u.state(0), b.Mul(d, d));
  const Value root = b.Sqrt(initial == 0 ? sum : b.AddScalar(sum, initial));
  return {b.Sub(u.w(), b.Div(b.Mul(LearningRate(u), d), b.AddScalar(root, u.rate("epsilon")))), sum};
}

}  // namespace

//===-- adagrad -------------------------------------------------------------------------------------------------===//
const OpDef& AdagradOp() {
  static const OpDef def =
      ops::Optimizer("adagrad", {{"sum", "adagrad_sum"}}, Adagrad, ops::Steps::kCounted)
          .Doc(
              "One step of Adagrad (Duchi, Hazan and Singer, 2011): d = g + weight_decay * w, next_sum = sum + d^2, "
              "next_w = w - learning_rate / (1 + (step - 1) * lr_decay) * d / "
              "(sqrt(initial_accumulator_value + next_sum) + epsilon). sum starts as zeros; step counts this step, 1 "
              "for the first.")
          .OptionalAttr<double>("lr_decay", 0.0, "how fast the learning rate falls: by 1 / (1 + steps * lr_decay)")
          .In(AtLeast(0))
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
          .In(AtLeast(0))
          .OptionalAttr<double>("initial_accumulator_value", 0.0, "added to the sum of squares, which leaves it out")
          .In(AtLeast(0))
          .OptionalAttr<double>("epsilon", 1e-10, "added to the root, against division by zero")
          .In(Above(0))
          .KnownAs({.name = "Adagrad",
                    .doc = "Adagrad (Duchi, Hazan and Singer, 2011): the gradient is divided by the root of the sum of "
                           "its squares so far.",
                    .defaults = {{"learning_rate", 0.01}}});
  return def;
}

}  // namespace lockstep
