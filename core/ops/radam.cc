// RAdam.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// The length of the approximated moving average is that of the paper. As in PyTorch, steps are rectified above 5.
std::vector<Term> Radam(ops::Update& u) {
  const Term beta1 = u.option("beta1"), step = u.step();
  const double beta2 = u.attr<double>("beta2");
  const Term d = u.DecayedGradient();
  const Term m = beta1 * u.state(0) + (1 - beta1) * d;
  const Term v = beta2 * u.state(1) + (1 - beta2) * (d * d);
  const Term correction2 = u.BiasCorrection(beta2);
  const double longest = 2 / (1 - beta2) - 1;
  const Term length = longest - 2 * step * u.PowerOverRest(beta2);
  const Term rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length);
  // Max avoids the root of a negative number, NaN, where the root is not used.
  const Term root = Sqrt(Max(rectified, 0) * correction2);
  const Term adapted = IfGreater(length, 5, root / (Sqrt(v) + u.option("epsilon")), 1);
  return {u.w() - u.option("learning_rate") / u.BiasCorrection(beta1) * m * adapted, m, v};
}

}  // namespace

//===-- radam ---------------------------------------------------------------------------------------------------===//
const OpDef& RadamOp() {
  static const OpDef def =
      ops::Optimizer("radam", {{"m", "radam_m"}, {"v", "radam_v", /*is_never_negative=*/true}}, Radam,
                     ops::Steps::kCounted)
          .Doc(
              "One step of RAdam (Liu et al., \"On the variance of the adaptive learning rate and beyond\", 2020): d "
              "= g + weight_decay * w, next_m = beta1 * m + (1 - beta1) * d, next_v = beta2 * v + (1 - beta2) * d^2; "
              "with longest = 2 / (1 - beta2) - 1 and length = longest - 2 * step * beta2^step / (1 - beta2^step), "
              "next_w = w - learning_rate * next_m / (1 - beta1^step) * a, where a is 1 unless length is above 5, "
              "and then sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length) * (1 - "
              "beta2^step)) / (sqrt(next_v) + epsilon). m and v start as zeros; step counts this step, 1 for the "
              "first.")
          .OptionalAttr<double>("beta1", 0.9, "the share of m that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("beta2", 0.999, "the share of v that remains")
          .In(AtLeast(0, 1))
          .OptionalAttr<double>("epsilon", 1e-8, "added to the root, against division by zero")
          .In(Above(0))
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
          .In(AtLeast(0))
          .OrOperand()
          .UserName(
              {.name = "RAdam",
               .doc = "RAdam (Liu et al., 2020): Adam whose adaptive step is held back in the first steps, where its "
                      "variance is large.",
               .defaults = {{"learning_rate", 1e-3}}});
  return def;
}

}  // namespace lockstep
