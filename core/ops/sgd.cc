// Stochastic gradient descent.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

constexpr char kPenalty[] = "weight of the L2 penalty";

std::vector<Term> Sgd(ops::Update& u) { return {u.w() - u.option("learning_rate") * u.DecayedGradient()}; }

std::vector<Term> SgdMomentum(ops::Update& u) {
  const Term momentum = u.option("momentum"), d = u.DecayedGradient();
  const Term v = momentum * u.state(0) + d;
  return {u.w() - u.option("learning_rate") * (u.attr<bool>("nesterov") ? d + momentum * v : v), v};
}

}  // namespace

//===-- sgd -----------------------------------------------------------------------------------------------------===//
const OpDef& SgdOp() {
  static const OpDef def = ops::Optimizer("sgd", {}, Sgd)
                               .Doc(
                                   "One step of gradient descent on the variable w with gradient g: w - learning_rate "
                                   "* (g + weight_decay * w).")
                               .OptionalAttr<double>("weight_decay", 0.0, kPenalty)
                               .In(AtLeast(0))
                               .OrOperand();
  return def;
}

//===-- sgd_momentum --------------------------------------------------------------------------------------------===//
const OpDef& SgdMomentumOp() {
  static const OpDef def =
      ops::Optimizer("sgd_momentum", {{"v", "momentum"}}, SgdMomentum)
          .Doc(
              "One step of gradient descent with momentum: d = g + weight_decay * w, next_v = momentum * v + d, "
              "next_w = w - learning_rate * (nesterov ? d + momentum * next_v : next_v). v starts as zeros.")
          .Attr<double>("momentum", "the share of v that remains")
          .In(AtLeast(0))
          .OrOperand()
          .OptionalAttr<bool>("nesterov", false, "look ahead by one step")
          .OptionalAttr<double>("weight_decay", 0.0, kPenalty)
          .In(AtLeast(0))
          .OrOperand()
          .UserName({.name = "SGD",
                     .doc = "Stochastic gradient descent: d = gradient + weight_decay * w; v = momentum * v + d; "
                            "w -= learning_rate * v.\n\n"
                            "With `nesterov` the step is along d + momentum * v. If momentum is 0, there is no v.",
                     .defaults = {{"momentum", 0.0}},
                     .variants = {{"sgd", {"momentum"}}}});
  return def;
}

}  // namespace lockstep
