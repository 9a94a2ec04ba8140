// Rprop.

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// In the first step the step sizes are the learning rate. The state starts as zeros, which no step reads.
std::vector<Term> Rprop(ops::Update& u) {
  const Term agreement = Sign(u.g()) * Sign(u.state(0));  // the product of small gradients itself would be 0
  const Term before = IfGreater(u.step(), 1, u.state(1), u.option("learning_rate"));
  const Term factor = IfGreater(agreement, 0, u.option("growth"), IfGreater(0, agreement, u.option("shrinkage"), 1));
  const Term size = Min(Max(factor * before, u.option("smallest")), u.option("largest"));
  const Term direction = IfGreater(0, agreement, 0, u.g());
  return {u.w() - Sign(direction) * size, direction, size};
}

}  // namespace

//===-- rprop ---------------------------------------------------------------------------------------------------===//
const OpDef& RpropOp() {
  static const OpDef def =
      ops::Optimizer("rprop", {{"last", "rprop_last"}, {"size", "rprop_size", /*is_never_negative=*/true}}, Rprop,
                     ops::Steps::kCounted)
          .Doc(
              "One step of Rprop (Riedmiller and Braun, 1993), in PyTorch's variant: the step size is multiplied by "
              "growth where g and last have the same sign, and by shrinkage where their signs differ, within "
              "[smallest, largest]; next_w = w - sign(d) * next_size and next_last = d, where d is g, or 0 where the "
              "signs differ. last starts as zeros. size is learning_rate before the first step; later steps do not "
              "read learning_rate. step counts this step, 1 for the first.")
          .OptionalAttr<double>("shrinkage", 0.5, "the factor of the step size where the gradient's sign changed")
          .In(Above(0, 1))
          .OptionalAttr<double>("growth", 1.2, "the factor of the step size where the gradient kept its sign")
          .In(Above(1))
          .OptionalAttr<double>("smallest", 1e-6, "the least step size")
          .In(AtLeast(0))
          .OptionalAttr<double>("largest", 50.0, "the greatest step size")
          .In(AtLeast(0))
          .UserName({.name = "Rprop",
                     .doc =
                         "Rprop (Riedmiller and Braun, 1993): each weight has its own step size, which grows while its "
                         "gradient keeps its sign. For gradients of all data, not of batches.",
                     .defaults = {{"learning_rate", 0.01}}});
  return def;
}

}  // namespace lockstep
