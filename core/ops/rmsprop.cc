// RMSprop.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// The next mean square, and the gradient in units of its root.
struct Scaled {
  Term square, direction;
};

Scaled ScaleGradient(ops::Update& u) {
  const Term alpha = u.option("alpha"), d = u.DecayedGradient();
  const Term square = alpha * u.state(0) + (1 - alpha) * (d * d);
  return {square, d / (Sqrt(square) + u.option("epsilon"))};
}

std::vector<Term> Rmsprop(ops::Update& u) {
  const Scaled scaled = ScaleGradient(u);
  return {u.w() - u.option("learning_rate") * scaled.direction, scaled.square};
}

std::vector<Term> RmspropMomentum(ops::Update& u) {
  const Scaled scaled = ScaleGradient(u);
  const Term v = u.option("momentum") * u.state(1) + scaled.direction;
  return {u.w() - u.option("learning_rate") * v, scaled.square, v};
}

OptimizerState MeanSquare() { return {"square", "rmsprop_square", /*is_never_negative=*/true}; }

OpDef& AddRates(OpDef& def) {
  return def.OptionalAttr<double>("alpha", 0.99, "the share of the mean square that remains")
      .In(AtLeast(0, 1))
      .OrOperand()
      .OptionalAttr<double>("epsilon", 1e-8, "added to the root, against division by zero")
      .In(Above(0))
      .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
      .In(AtLeast(0))
      .OrOperand();
}

}  // namespace

//===-- rmsprop -------------------------------------------------------------------------------------------------===//
const OpDef& RmspropOp() {
  static const OpDef def = [] {
    OpDef op = ops::Optimizer("rmsprop", {MeanSquare()}, Rmsprop);
    op.Doc(
        "One step of RMSprop (Tieleman and Hinton, 2012): d = g + weight_decay * w, next_square = alpha * square + "
        "(1 - alpha) * d^2, next_w = w - learning_rate * d / (sqrt(next_square) + epsilon). square starts as zeros.");
    return AddRates(op);
  }();
  return def;
}

//===-- rmsprop_momentum ----------------------------------------------------------------------------------------===//
const OpDef& RmspropMomentumOp() {
  static const OpDef def = [] {
    OpDef op = ops::Optimizer("rmsprop_momentum", {MeanSquare(), {"v", "rmsprop_momentum"}}, RmspropMomentum);
    op.Doc(
        "One step of RMSprop with momentum: as rmsprop, but next_v = momentum * v + d / (sqrt(next_square) + epsilon), "
        "next_w = w - learning_rate * next_v. v starts as zeros.");
    AddRates(op).Attr<double>("momentum", "the share of v that remains").In(AtLeast(0)).OrOperand();
    return op.KnownAs(
        {.name = "RMSprop",
         .doc = "RMSprop (Tieleman and Hinton, 2012): the gradient is divided by the root of the running mean "
                "of its squares.\n\nWith `momentum` the steps add up, each with a share of those before; without it "
                "nothing is kept for them.",
         .defaults = {{"learning_rate", 0.01}, {"momentum", 0.0}},
         .unless = "momentum",
         .simpler = "rmsprop"});
  }();
  return def;
}

}  // namespace lockstep
