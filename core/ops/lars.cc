// LARS.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// Algorithm 1 of the paper, but the learning rate multiplies v, as in PyTorch's SGD, and not the terms added to v. Both
// are equal while the rate is constant. If one of the norms is zero, the ratio is 1.
std::vector<Term> Lars(ops::Update& u) {
  const Term momentum = u.option("momentum"), decay = u.option("weight_decay");
  const Term of_w = Norm(u.w()), of_g = Norm(u.g());
  const Term trusted = u.option("trust_coefficient") * of_w / (of_g + decay * of_w + u.option("epsilon"));
  const Term ratio = IfGreater(of_w, 0, IfGreater(of_g, 0, trusted, 1), 1);
  const Term d = ratio * u.DecayedGradient();
  const Term v = momentum * u.state(0) + d;
  return {u.w() - u.option("learning_rate") * (u.attr<bool>("nesterov") ? d + momentum * v : v), v};
}

}  // namespace

//===-- lars ----------------------------------------------------------------------------------------------------===//
const OpDef& LarsOp() {
  static const OpDef def =
      ops::Optimizer("lars", {{"v", "lars_momentum"}}, Lars, ops::Steps::kNotCounted, ops::Elements::kTogether)
          .Doc(
              "One step of LARS (You, Gitman and Ginsburg, \"Large batch training of convolutional networks\", 2017): "
              "d = trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon) * (g + weight_decay * w), next_v = "
              "momentum * v + d, next_w = w - learning_rate * (nesterov ? d + momentum * next_v : next_v), where the "
              "norms are of the whole variable, and the factor of d is 1 if one of them is 0. v starts as zeros.")
          .OptionalAttr<double>("momentum", 0.9, "the share of v that remains")
          .In(AtLeast(0))
          .OrOperand()
          .OptionalAttr<bool>("nesterov", false, "look ahead by one step")
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
          .In(AtLeast(0))
          .OrOperand()
          .OptionalAttr<double>("trust_coefficient", 1e-3, "the ratio of the norm of d to that of the variable")
          .In(Above(0))
          .OrOperand()
          .OptionalAttr<double>("epsilon", 1e-8, "added to the divisor, against division by zero")
          .In(Above(0))
          .UserName({.name = "LARS",
                     .doc =
                         "LARS (You, Gitman and Ginsburg, 2017), for large batches: SGD with momentum, whose gradient "
                         "is scaled by the ratio of the variable's norm to its own. The learning rate multiplies the "
                         "accumulated momentum, as in PyTorch's SGD and NVIDIA's LARC.\n\n"
                         "Biases and the parameters of normalisations are usually excluded: `groups` of `train_step` "
                         "give them SGD."});
  return def;
}

}  // namespace lockstep
