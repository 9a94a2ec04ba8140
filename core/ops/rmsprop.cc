// RMSprop.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

// The next mean square, and the gradient in units of its root.
struct Scaled {
  Value square, direction;
};

Scaled ScaleGradient(ops::Update& u) {
  Builder& b = u.b();
  const double alpha = u.rate("alpha");
  const Value d = u.DecayedGradient();
  const Value square = b.Add(b.Scale(u.state(0), alpha), b.Scale(b.Mul(d, d), 1 - alpha));
  return {square, b.Div(d, b.AddScalar(b.Sqrt(square), u.rate("epsilon")))};
}

std::vector<Value> Rmsprop(ops::Update& u) {
  const Scaled scaled = ScaleGradient(u);
  return {u.b().Sub(u.w(), u.b().Scale(scaled.direction, u.rate("learning_rate"))), scaled.square};
}

std::vector<Value> RmspropMomentum(ops::Update& u) {
  Builder& b = u.b();
  const Scaled scaled = ScaleGradient(u);
  const Value v = b.Add(b.Scale(u.state(1), u.rate("momentum")), scaled.direction);
  return {b.Sub(u.w(), b.Scale(v, u.rate("learning_rate"))), scaled.square, v};
}

OptimizerState MeanSquare() { return {"square", "rmsprop_square", /*is_never_negative=*/true}; }

OpDef& AddRates(OpDef& def) {
  return def.OptionalAttr<double>("alpha", 0.99, "the share of the mean square that remains")
      .In(AtLeast(0, 1))
      .OptionalAttr<double>("epsilon", 1e-8, "added to the root, against division by zero")
      .In(Above(0))
      .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
      .In(AtLeast(0));
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
    AddRates(op).Attr<double>("momentum", "the share of v that remains").In(AtLeast(0));
    return op.KnownAs(
        {.name = "RMSprop",
         .doc = "RMSprop (Tieleman and Hinton, 2012): the gradient is divided by the root of the running mean "
                "of its squares.\n\n"
                "With `momentum` the steps add up, each with a share of those before; without it nothing is "
                "kept for them.",
         .defaults = {{"learning_rate", 0.01}, {"momentum", 0.0}},
         .unless = "momentum",
         .simpler = "rmsprop"});
  }();
  return def;
}

}  // namespace lockstep
