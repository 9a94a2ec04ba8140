// RMSprop. Momentum and centering are options, so there are four ops, each with the states that it needs.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// The optional states. All states in order: `square`, `mean` if centered, `v` with momentum.
enum Parts : unsigned { kPlain = 0, kCentered = 1, kMomentum = 2 };

std::vector<Term> Rmsprop(ops::Update& u, unsigned parts) {
  const Term alpha = u.option("alpha"), d = u.DecayedGradient();
  const Term square = alpha * u.state(0) + (1 - alpha) * (d * d);
  std::vector<Term> states = {square};
  Term variance = square;
  if (parts & kCentered) {
    const Term& mean = states.emplace_back(alpha * u.state(1) + (1 - alpha) * d);
    variance = Max(square - mean * mean, 0);  // rounding can make the difference negative
  }
  Term direction = d / (Sqrt(variance) + u.option("epsilon"));
  if (parts & kMomentum) {
    direction = u.option("momentum") * u.state(states.size()) + direction;
    states.push_back(direction);
  }
  std::vector<Term> next = {u.w() - u.option("learning_rate") * direction};
  next.insert(next.end(), states.begin(), states.end());
  return next;
}

OpDef RmspropOf(std::string name, unsigned parts, std::string doc) {
  std::vector<OptimizerState> states = {{"square", "rmsprop_square", /*is_never_negative=*/true}};
  if (parts & kCentered) states.push_back({"mean", "rmsprop_mean"});
  if (parts & kMomentum) states.push_back({"v", "rmsprop_momentum"});
  OpDef op = ops::Optimizer(std::move(name), states, [parts](ops::Update& u) { return Rmsprop(u, parts); });
  op.Doc(std::move(doc))
      .OptionalAttr<double>("alpha", 0.99, "the share of the means that remains")
      .In(AtLeast(0, 1))
      .OrOperand()
      .OptionalAttr<double>("epsilon", 1e-8, "added to the root, against division by zero")
      .In(Above(0))
      .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
      .In(AtLeast(0))
      .OrOperand();
  if (parts & kMomentum) op.Attr<double>("momentum", "the share of v that remains").In(AtLeast(0)).OrOperand();
  return op;
}

}  // namespace

//===-- rmsprop -------------------------------------------------------------------------------------------------===//
const OpDef& RmspropOp() {
  static const OpDef def = RmspropOf(
      "rmsprop", kPlain,
      "One step of RMSprop (Tieleman and Hinton, 2012): d = g + weight_decay * w, next_square = alpha * square + "
      "(1 - alpha) * d^2, next_w = w - learning_rate * d / (sqrt(next_square) + epsilon). square starts as zeros.");
  return def;
}

//===-- rmsprop_momentum ----------------------------------------------------------------------------------------===//
const OpDef& RmspropMomentumOp() {
  static const OpDef def = RmspropOf(
      "rmsprop_momentum", kMomentum,
      "One step of RMSprop with momentum: as rmsprop, but next_v = momentum * v + d / (sqrt(next_square) + epsilon), "
      "next_w = w - learning_rate * next_v. v starts as zeros.");
  return def;
}

//===-- rmsprop_centered ----------------------------------------------------------------------------------------===//
const OpDef& RmspropCenteredOp() {
  static const OpDef def =
      RmspropOf("rmsprop_centered", kCentered,
                "One step of centered RMSprop (Graves, \"Generating sequences with recurrent neural networks\", 2013): "
                "as rmsprop, but next_mean = alpha * mean + (1 - alpha) * d, and the root is of the variance "
                "max(next_square - next_mean^2, 0). mean starts as zeros.");
  return def;
}

//===-- rmsprop_centered_momentum -------------------------------------------------------------------------------===//
const OpDef& RmspropCenteredMomentumOp() {
  static const OpDef def =
      RmspropOf("rmsprop_centered_momentum", kCentered | kMomentum,
                "One step of centered RMSprop with momentum: next_mean and the root are those of rmsprop_centered, "
                "next_v and next_w those of rmsprop_momentum.")
          .UserName({.name = "RMSprop",
                     .doc =
                         "RMSprop (Tieleman and Hinton, 2012): the gradient is divided by the root of the running "
                         "mean of its squares, or, if it is centered, of its variance.\n\n"
                         "With `momentum` each step is added to a share of the previous ones. The state of an option "
                         "exists only with that option.",
                     .defaults = {{"learning_rate", 0.01}, {"momentum", 0.0}},
                     .variants = {{"rmsprop", {"momentum", "centered"}},
                                  {"rmsprop_momentum", {"centered"}},
                                  {"rmsprop_centered", {"momentum"}}},
                     .flags = {{"centered", "divide by the root of the variance of the gradient"}}});
  return def;
}

}  // namespace lockstep
