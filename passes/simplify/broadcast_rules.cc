// Rules about broadcasts: they are moved towards the results, so that what they repeat is computed once.

#include <algorithm>

#include "core/op_def.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;

// broadcast(x) to its own shape ==> x
Value BroadcastIdentity(Node& node, Builder&) {
  return node.operand(0).shape() == node.type(0).shape ? node.operand(0) : Value();
}

// broadcast(broadcast(x)) ==> broadcast(x)
Value BroadcastBroadcast(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "broadcast");
  if (!inner) return Value();
  Ints dims;
  for (int64_t dim : inner->attr<Ints>("dims")) dims.push_back(node.attr<Ints>("dims")[static_cast<size_t>(dim)]);
  return b.Broadcast(inner->operand(0), node.type(0).shape, dims);
}

// constant of equal elements ==> broadcast(constant scalar)
Value ConstantSplat(Node& node, Builder& b) {
  if (node.type(0).num_elements() < 2) return Value();
  const std::optional<Tensor> scalar = SplatOf(node.result());
  return scalar ? Splat(b, *scalar, node.type(0).shape) : Value();
}

// reshape, transpose or slice of equal elements ==> broadcast(constant scalar)
Value MovedSplat(Node& node, Builder& b) {
  const std::optional<Tensor> scalar = SplatOf(node.operand(0));
  return scalar ? Splat(b, *scalar, node.type(0).shape) : Value();
}

// pad(splat c, value c) ==> splat c
Value PaddedSplat(Node& node, Builder& b) {
  if (!IsSplat(node.operand(0), node.attr<double>("value"))) return Value();
  return Splat(b, *SplatOf(node.operand(0)), node.type(0).shape);
}

// f(broadcast(x), broadcast(y), splat) ==> broadcast(f(x, y, splat)), for an elementwise f
Value ElementwiseOfBroadcasts(Node& node, Builder& b) {
  Node* first = nullptr;  // the broadcast that all others must be like
  for (Value operand : node.operands()) {
    if (SplatOf(operand)) continue;
    Node* broadcast = MadeBy(operand, "broadcast");
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
      {"broadcast_identity", "broadcast", BroadcastIdentity},
      {"broadcast_broadcast", "broadcast", BroadcastBroadcast},
      {"constant_splat", "constant", ConstantSplat},
      {"reshape_splat", "reshape", MovedSplat},
      {"transpose_splat", "transpose", MovedSplat},
      {"slice_splat", "slice", MovedSplat},
      {"pad_splat", "pad", PaddedSplat},
      {"elementwise_of_broadcasts", "", ElementwiseOfBroadcasts},
  };
}

}  // namespace lockstep::passes
