// Stochastic gradient descent. Learning rates are constants of the compiled program.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

constexpr char kPenalty[] = "weight of the L2 penalty";

std::vector<Value> Sgd(ops::Update& u) {
  return {u.b().Sub(u.w(), u.b().Scale(u.DecayedGradient(), u.rate("learning_rate")))};
}

std::vector<Value> SgdMomentum(ops::Update& u) {
  Builder& b = u.b();
  const double momentum = u.rate("momentum");
  const Value d = u.DecayedGradient();
  const Value v = b.Add(b.Scale(u.state(0), momentum), d);
  const Value direction = u.attr<bool>("nesterov") ? b.Add(d, b.Scale(v, momentum)) : v;
  return {b.Sub(u.w(), b.Scale(direction, u.rate("learning_rate"))), v};
}

}  // namespace

//===-- sgd -----------------------------------------------------------------------------------------------------===//
const OpDef& SgdOp() {
  static const OpDef def = ops::Optimizer("sgd", {}, Sgd)
                               .Doc(
                                   "One step of gradient descent on the variable w with gradient g: w - learning_rate "
                                   "* (g + weight_decay * w).")
                               .OptionalAttr<double>("weight_decay", 0.0, kPenalty)
                               .In(AtLeast(0));
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
          .OptionalAttr<bool>("nesterov", false, "look ahead by one step")
          .OptionalAttr<double>("weight_decay", 0.0, kPenalty)
          .In(AtLeast(0))
          .KnownAs({.name = "SGD",
                    .doc = "Stochastic gradient descent: d = gradient + weight_decay * w; v = momentum * v + d; "
                           "w -= learning_rate * v.\n\n"
                           "With `nesterov` the step is along d + momentum * v. There is no v if momentum is 0.",
                    .defaults = {{"momentum", 0.0}},
                    .unless = "momentum",
                    .simpler = "sgd"});
  return def;
}

}  // namespace lockstep
