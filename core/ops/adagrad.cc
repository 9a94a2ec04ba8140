// Adagrad.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

std::vector<Term> Adagrad(ops::Update& u) {
  const Term d = u.DecayedGradient();
  const Term rate = u.option("learning_rate") / (1 + u.option("lr_decay") * (u.step() - 1));
  const Term sum = u.state(0) + d * d;
  const Term root = Sqrt(u.option("initial_accumulator_value") + sum);
  return {u.w() - rate * d / (root + u.option("epsilon")), sum};
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
          .OptionalAttr<double>("lr_decay", 0.0,
                                "the decay of the learning rate: its factor is 1 / (1 + steps * lr_decay)")
          .In(AtLeast(0))
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
          .In(AtLeast(0))
          .OrOperand()
          .OptionalAttr<double>("initial_accumulator_value", 0.0,
                                "added to the sum of squares; the state does not contain it")
          .In(AtLeast(0))
          .OptionalAttr<double>("epsilon", 1e-10, "added to the root, against division by zero")
          .In(Above(0))
          .UserName({.name = "Adagrad",
                     .doc =
                         "Adagrad (Duchi, Hazan and Singer, 2011): the gradient is divided by the root of the sum of "
                         "its squares so far.",
                     .defaults = {{"learning_rate", 0.01}}});
  return def;
}

}  // namespace lockstep
