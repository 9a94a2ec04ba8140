// Adadelta.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

std::vector<Term> Adadelta(ops::Update& u) {
  const Term rho = u.option("rho"), epsilon = u.option("epsilon");
  const Term d = u.DecayedGradient();
  const Term square = rho * u.state(0) + (1 - rho) * (d * d);
  const Term delta = Sqrt(u.state(1) + epsilon) / Sqrt(square + epsilon) * d;
  const Term change = rho * u.state(1) + (1 - rho) * (delta * delta);
  return {u.w() - u.option("learning_rate") * delta, square, change};
}

}  // namespace

//===-- adadelta ------------------------------------------------------------------------------------------------===//
const OpDef& AdadeltaOp() {
  static const OpDef def =
      ops::Optimizer("adadelta",
                     {{"square", "adadelta_square", /*is_never_negative=*/true},
                      {"change", "adadelta_change", /*is_never_negative=*/true}},
                     Adadelta)
          .Doc(
              "One step of Adadelta (Zeiler, 2012): d = g + weight_decay * w, next_square = rho * square + (1 - rho) "
              "* d^2, delta = sqrt(change + epsilon) / sqrt(next_square + epsilon) * d, next_change = rho * change + "
              "(1 - rho) * delta^2, next_w = w - learning_rate * delta. square and change start as zeros.")
          .OptionalAttr<double>("rho", 0.9, "the share of the mean squares that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<double>("epsilon", 1e-6, "added under both roots")
          .In(Above(0))
          .OptionalAttr<double>("weight_decay", 0.0, "weight of the L2 penalty")
          .In(AtLeast(0))
          .OrOperand()
          .UserName({.name = "Adadelta",
                     .doc = "Adadelta (Zeiler, 2012): the gradient divided by its own root mean square, times the root "
                            "mean square of the changes so far.",
                     .defaults = {{"learning_rate", 1.0}}});
  return def;
}

}  // namespace lockstep
