// Adam and AdamW.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

std::vector<Term> Adam(ops::Update& u) {
  const Term rate = u.option("learning_rate"), decay = u.option("weight_decay");
  const Term beta1 = u.option("beta1"), beta2 = u.option("beta2");
  const bool decoupled = u.attr<bool>("decoupled");
  const Term w = decoupled ? (1 - rate * decay) * u.w() : u.w();
  const Term d = decoupled ? u.g() : u.DecayedGradient();
  const Term m = beta1 * u.state(0) + (1 - beta1) * d;
  const Term v = beta2 * u.state(1) + (1 - beta2) * (d * d);
  const Term size = rate / u.BiasCorrection(beta1);
  const Term root = Sqrt(v) * Rsqrt(u.BiasCorrection(beta2));
  return {w - size * m / (root + u.option("epsilon")), m, v};
}

}  // namespace

//===-- adam ----------------------------------------------------------------------------------------------------===//
const OpDef& AdamOp() {
  static const OpDef def =
      ops::Optimizer("adam", {{"m", "adam_m"}, {"v", "adam_v", /*is_never_negative=*/true}}, Adam, ops::Steps::kCounted)
          .Doc(
              "One step of Adam (Kingma and Ba, 2015): d = g + weight_decay * w, next_m = beta1 * m + (1 - beta1) * d, "
              "next_v = beta2 * v + (1 - beta2) * d^2, next_w = w - learning_rate * (next_m / (1 - beta1^step)) / "
              "(sqrt(next_v / (1 - beta2^step)) + epsilon). If decoupled it is AdamW (Loshchilov and Hutter, 2019): "
              "d = g, and w is first multiplied by 1 - learning_rate * weight_decay. m and v start as zeros; step "
              "counts this step, 1 for the first.")
          .OptionalAttr<double>("beta1", 0.9, "the share of m that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("beta2", 0.999, "the share of v that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("epsilon", 1e-8, "added to the root, against division by zero")
          .In(Above(0))
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty, or of the decay if decoupled")
          .In(AtLeast(0))
          .OrOperand()
          .OptionalAttr<bool>("decoupled", false, "decay the variable itself rather than by an L2 penalty")
          .UserName({.name = "Adam",
                     .doc = "Adam (Kingma and Ba, 2015), with bias correction; weight decay is added to the gradient.",
                     .defaults = {{"learning_rate", 1e-3}},
                     .fixed = {{"decoupled", false}}})
          .UserName({.name = "AdamW",
                     .doc = "Adam with decoupled weight decay (Loshchilov and Hutter, 2019): "
                            "w -= learning_rate * weight_decay * w.",
                     .defaults = {{"learning_rate", 1e-3}, {"weight_decay", 0.01}},
                     .fixed = {{"decoupled", true}}});
  return def;
}

}  // namespace lockstep
