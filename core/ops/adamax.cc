// Adamax.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

std::vector<Term> Adamax(ops::Update& u) {
  const Term beta1 = u.option("beta1"), beta2 = u.option("beta2");
  const Term d = u.DecayedGradient();
  const Term m = beta1 * u.state(0) + (1 - beta1) * d;
  const Term norm = Max(beta2 * u.state(1), Abs(d) + u.option("epsilon"));
  return {u.w() - u.option("learning_rate") / u.BiasCorrection(beta1) * m / norm, m, norm};
}

}  // namespace

//===-- adamax --------------------------------------------------------------------------------------------------===//
const OpDef& AdamaxOp() {
  static const OpDef def =
      ops::Optimizer("adamax", {{"m", "adamax_m"}, {"norm", "adamax_norm", /*is_never_negative=*/true}}, Adamax,
                     ops::Steps::kCounted)
          .Doc(
              "One step of Adamax (Kingma and Ba, 2015, section 7.1): d = g + weight_decay * w, next_m = beta1 * m + "
              "(1 - beta1) * d, next_norm = max(beta2 * norm, |d| + epsilon), next_w = w - learning_rate / (1 - "
              "beta1^step) * next_m / next_norm. m and norm start as zeros; step counts this step, 1 for the first.")
          .OptionalAttr<double>("beta1", 0.9, "the share of m that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("beta2", 0.999, "the share of norm that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("epsilon", 1e-8, "added to the gradient's size, against division by zero")
          .In(Above(0))
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
          .In(AtLeast(0))
          .OrOperand()
          .UserName({.name = "Adamax",
                     .doc =
                         "Adamax (Kingma and Ba, 2015): Adam with a decaying maximum of the gradient's size instead of "
                         "the root mean square.",
                     .defaults = {{"learning_rate", 2e-3}}});
  return def;
}

}  // namespace lockstep
