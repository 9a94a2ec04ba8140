// Rules about broadcasts. They move broadcasts towards the results, so that repeated elements are computed once.

#include "core/ops/op_list.h"
#include "passes/simplify/constants.h"
#include "passes/simplify/letters.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using enum Numbers;

Condition Equals(AnySplat c, AnyAttr<double> value) {
  return [=](const Match& m) { return m[c] == Tensor::Scalar(m[c].dtype(), m[value]); };
}

// constant of equal elements ==> broadcast(constant scalar)
Value ConstantSplat(Node& node, Builder& b) {
  if (node.type(0).num_elements() < 2) return Value();
  const std::optional<Tensor> scalar = SplatOf(node.result());
  return scalar ? Splat(b, *scalar, node.type(0).shape) : Value();
}

// transpose(constant of equal elements) ==> broadcast(constant scalar), for every op that only moves elements
Value MovedSplat(Node& node, Builder& b) {
  if (!node.op().is_mover() || MadeBy(node.result(), BroadcastOp())) return Value();
  const std::optional<Tensor> scalar = SplatOf(node.operand(0));
  return scalar ? Splat(b, *scalar, node.type(0).shape) : Value();
}

// f(broadcast(x), broadcast(y), splat) ==> broadcast(f(x, y, splat)), for an elementwise f
Value ElementwiseOfBroadcasts(Node& node, Builder& b) {
  Node* first = nullptr;  // the broadcast whose dims all others must have
  for (Value operand : node.operands()) {
    if (SplatOf(operand)) continue;
    Node* broadcast = MadeBy(operand, BroadcastOp());
    if (!broadcast) return Value();
    if (!first) first = broadcast;
    if (broadcast->attr<Ints>("dims") != first->attr<Ints>("dims")) return Value();
  }
  if (!first || first->type(0).num_elements() <= first->operand(0).type().num_elements()) return Value();
  const Shape& small = first->operand(0).shape();
  std::vector<Value> operands;
  for (Value operand : node.operands()) {
    const std::optional<Tensor> scalar = SplatOf(operand);
    operands.push_back(scalar ? Splat(b, *scalar, small) : operand.node->operand(0));
  }
  return b.Broadcast(b.Op(node.op_name(), std::move(operands), node.attributes()), node.type(0).shape,
                     first->attr<Ints>("dims"));
}

}  // namespace

std::vector<SimplifyRule> BroadcastRules() {
  return {
      {"broadcast_identity", kAll, Broadcast(x, p), x, SameShape(x)},
      {"broadcast_broadcast", kAll, Broadcast(Broadcast(x, p), q), Broadcast(x, q[p])},

      {"constant_splat", ConstantOp(), ConstantSplat},
      {"moved_splat", kMovement, MovedSplat},
      {"pad_splat", kAll, Pad(c0, p, q, value), c0, Equals(c0, value)},

      {"elementwise_of_broadcasts", kElementwise, ElementwiseOfBroadcasts},
  };
}

}  // namespace lockstep::passes
