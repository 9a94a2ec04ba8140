// NAdam.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// The momentum mu_t grows with the step t. The state `missing` is 1 - mu_1 * … * mu_t and starts as 0. The divisors are
// computed from it without cancellation.
std::vector<Term> Nadam(ops::Update& u) {
  const Term rate = u.option("learning_rate"), decay = u.option("weight_decay");
  const Term beta1 = u.option("beta1"), beta2 = u.option("beta2");
  const bool decoupled = u.attr<bool>("decoupled_weight_decay");
  const Term w = decoupled ? (1 - rate * decay) * u.w() : u.w();
  const Term d = decoupled ? u.g() : u.DecayedGradient();
  const auto momentum = [&](const Term& step) {
    return beta1 * (1 - 0.5 * u.Power(0.96, step, u.option("momentum_decay")));
  };
  const Term mu = momentum(u.step()), next_mu = momentum(u.step() + 1);
  const Term missing = (1 - mu) + u.state(2) * mu;              // 1 - mu_1 * … * mu_t
  const Term missing_next = (1 - next_mu) + missing * next_mu;  // … * mu_t+1
  const Term m = beta1 * u.state(0) + (1 - beta1) * d;
  const Term v = beta2 * u.state(1) + (1 - beta2) * (d * d);
  const Term root = Sqrt(v) * Rsqrt(u.BiasCorrection(beta2)) + u.option("epsilon");
  return {w - (rate * (1 - mu) / missing * d + rate * next_mu / missing_next * m) / root, m, v, missing};
}

}  // namespace

//===-- nadam ---------------------------------------------------------------------------------------------------===//
const OpDef& NadamOp() {
  static const OpDef def =
      ops::Optimizer("nadam",
                     {{"m", "nadam_m"},
                      {"v", "nadam_v", /*is_never_negative=*/true},
                      {"missing", "nadam_missing", /*is_never_negative=*/true, StateShape::kScalar}},
                     Nadam, ops::Steps::kCounted)
          .Doc(
              "One step of NAdam (Dozat, \"Incorporating Nesterov momentum into Adam\", 2016), as in PyTorch: d = g "
              "+ weight_decay * w, next_m = beta1 * m + (1 - beta1) * d, next_v = beta2 * v + (1 - beta2) * d^2; with "
              "mu(t) = beta1 * (1 - 0.5 * 0.96^(t * momentum_decay)), next_missing = 1 - (1 - missing) * mu(step) and "
              "next_w = w - learning_rate * ((1 - mu(step)) / next_missing * d + mu(step + 1) / (1 - (1 - "
              "next_missing) * mu(step + 1)) * next_m) / (sqrt(next_v / (1 - beta2^step)) + epsilon). With "
              "decoupled_weight_decay d = g, and w is first multiplied by 1 - learning_rate * weight_decay. m, v and "
              "missing start as zeros: 1 - missing is PyTorch's mu_product; step counts this step, 1 for the first.")
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
          .OptionalAttr<double>("momentum_decay", 4e-3, "the rate at which the momentum grows from beta1 / 2 to beta1")
          .In(AtLeast(0))
          .OrOperand()
          .OptionalAttr<bool>("decoupled_weight_decay", false, "decay the variable itself rather than by an L2 penalty")
          .UserName({.name = "NAdam",
                     .doc = "NAdam (Dozat, 2016): Adam with Nesterov's momentum, which grows in the first steps.",
                     .defaults = {{"learning_rate", 2e-3}}});
  return def;
}

}  // namespace lockstep
