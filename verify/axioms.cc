#include "verify/axioms.h"

#include <algorithm>

namespace lockstep::verify {
namespace {

// The constant 0, perhaps broadcast.
bool IsZero(Value value) {
  while (value.node->Is("broadcast")) value = value.node->operand(0);
  if (!value.node->Is("constant")) return false;
  const Tensor& tensor = value.node->attr<Tensor>("value");
  return tensor.shape().num_elements() > 0 && tensor.AllElementsEqual() && tensor.At(0) == 0;
}

// max(E[x^2] - E[x]^2, 0) is E[x^2] - E[x]^2: a variance (passes/optimize/one_pass_statistics.h).
bool IsClampOfVariance(const Node& node) {
  if (!node.Is("max") || !node.operand(0).node->Is("sub") || !IsZero(node.operand(1))) return false;
  const Node& square = *node.operand(0).node->operand(1).node;
  return square.Is("mul") && square.operand(0) == square.operand(1);
}

// Rounding to the codes of the int8 wire (passes/distribute/quantize_wire.h).
bool RoundsToWire(const Node& node) {
  return node.Is("round") && !node.users().empty() &&
         std::all_of(node.users().begin(), node.users().end(),
                     [](const Node* user) { return user->Is("convert") && user->type().dtype == DType::kI8; });
}

struct Axiom {
  bool (*applies)(const Node& node);  // the node's result is then its operand 0
  const char* assumption;
};

constexpr Axiom kAxioms[] = {
    {IsClampOfVariance, "a mean of squares is at least the square of the mean"},
    {RoundsToWire, "codes of the int8 wire lose nothing"},
};

}  // namespace

Value StandsFor(const Node& node) {
  if (!node.Is("bitcast") || !node.operand(0).node->Is("bitcast")) return {};
  const Value origin = node.operand(0).node->operand(0);
  return origin.dtype() == node.type().dtype ? origin : Value();
}

bool IsItsOperand(const Node& node) {
  return std::any_of(std::begin(kAxioms), std::end(kAxioms), [&](const Axiom& a) { return a.applies(node); });
}

bool ApplyAxiom(const Node& node, Meaning& m) {
  if (node.Is("bitcast") && m.operand(0).is_exact()) {  // its bits are known only to the bitcast back
    m.Assume("the bits of a float matter only when they become that float again");
    return true;
  }
  const auto axiom =
      std::find_if(std::begin(kAxioms), std::end(kAxioms), [&](const Axiom& a) { return a.applies(node); });
  if (axiom == std::end(kAxioms)) return false;
  m.result() = m.operand(0);
  if (axiom->applies == RoundsToWire) {
    for (Exact& number : m.y()) {
      if (number.is_nan()) number = Exact();  // the code of 0 / 0, of a block of zeros
      else if (m.assumptions().wire_rounds) number += RandomFunction("rounding", {number});
    }
    if (m.assumptions().wire_rounds) return true;
  }
  m.Assume(axiom->assumption);
  return true;
}

}  // namespace lockstep::verify
