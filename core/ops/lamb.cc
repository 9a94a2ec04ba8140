// LAMB.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// Algorithm 2 of the paper with the identity as phi, as in NVIDIA's FusedLAMB. If a norm is zero, the ratio is 1.
std::vector<Term> Lamb(ops::Update& u) {
  const Term beta1 = u.option("beta1"), beta2 = u.option("beta2");
  const Term m = beta1 * u.state(0) + (1 - beta1) * u.g();
  const Term v = beta2 * u.state(1) + (1 - beta2) * (u.g() * u.g());
  const Term root = Sqrt(v) * Rsqrt(u.BiasCorrection(beta2)) + u.option("epsilon");
  const Term update = 1 / u.BiasCorrection(beta1) * m / root + u.option("weight_decay") * u.w();
  const Term of_w = Norm(u.w()), of_update = Norm(update);
  const Term ratio = IfGreater(of_w, 0, IfGreater(of_update, 0, of_w / of_update, 1), 1);
  return {u.w() - u.option("learning_rate") * ratio * update, m, v};
}

}  // namespace

//===-- lamb ----------------------------------------------------------------------------------------------------===//
const OpDef& LambOp() {
  static const OpDef def =
      ops::Optimizer("lamb", {{"m", "lamb_m"}, {"v", "lamb_v", /*is_never_negative=*/true}}, Lamb, ops::Steps::kCounted,
                     ops::Elements::kTogether)
          .Doc(
              "One step of LAMB (You et al., \"Large batch optimization for deep learning\", 2020): next_m = beta1 * m "
              "+ (1 - beta1) * g, next_v = beta2 * v + (1 - beta2) * g^2, u = (next_m / (1 - beta1^step)) / "
              "(sqrt(next_v / (1 - beta2^step)) + epsilon) + weight_decay * w, next_w = w - learning_rate * |w| / |u| "
              "* u, where the norms are of the whole variable, and their ratio is 1 if one of them is 0. m and v start "
              "as zeros; step counts this step, 1 for the first.")
          .OptionalAttr<double>("beta1", 0.9, "the share of m that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("beta2", 0.999, "the share of v that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("epsilon", 1e-6, "added to the root, against division by zero")
          .In(Above(0))
          .OptionalAttr<double>("weight_decay", 0.01,
                                "weight of the decay, which is part of the update before its norm is taken")
          .In(AtLeast(0))
          .OrOperand()
          .UserName({.name = "LAMB",
                     .doc =
                         "LAMB (You et al., 2020), for large batches: Adam's step, scaled to the norm of the variable. "
                         "Defaults are those of NVIDIA's FusedLAMB, without its clipping of gradients, which "
                         "`train_step` has.\n\n"
                         "Biases and the parameters of normalisations are usually excluded: `groups` of `train_step` "
                         "give them AdamW.",
                     .defaults = {{"learning_rate", 1e-3}}});
  return def;
}

}  // namespace lockstep
