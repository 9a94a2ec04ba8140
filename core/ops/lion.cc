// Lion.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// Algorithm 2 of the paper.
std::vector<Term> Lion(ops::Update& u) {
  const Term rate = u.option("learning_rate"), decay = u.option("weight_decay");
  const Term beta1 = u.option("beta1"), beta2 = u.option("beta2");
  const Term g = u.g(), m = u.state(0);
  const Term c = beta1 * m + (1 - beta1) * g;
  return {u.w() - rate * (Sign(c) + decay * u.w()), beta2 * m + (1 - beta2) * g};
}

}  // namespace

//===-- lion ----------------------------------------------------------------------------------------------------===//
const OpDef& LionOp() {
  static const OpDef def =
      ops::Optimizer("lion", {{"m", "lion_m"}}, Lion)
          .Doc(
              "One step of Lion (Chen et al., \"Symbolic discovery of optimization algorithms\", 2023): c = beta1 * "
              "m + (1 - beta1) * g, next_w = w - learning_rate * (sign(c) + weight_decay * w), next_m = beta2 * m + "
              "(1 - beta2) * g. m starts as zeros.")
          .OptionalAttr<double>("beta1", 0.9, "the share of m in the direction of the step")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("beta2", 0.99, "the share of m that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the decay of the variable itself")
          .In(AtLeast(0))
          .OrOperand()
          .UserName(
              {.name = "Lion",
               .doc = "Lion (Chen et al., 2023): each weight moves by the learning rate, in the direction of a running "
                      "mean of its gradient; the weight decay is decoupled.",
               .defaults = {{"learning_rate", 1e-4}}});
  return def;
}

}  // namespace lockstep
