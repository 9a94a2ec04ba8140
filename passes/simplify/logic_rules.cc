// Rules about truth values, selection and conversion.

#include "core/op_def.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

// not not x ==> x
Value NotNot(Node& node, Builder&) {
  Node* inner = MadeBy(node.operand(0), "not");
  return inner ? inner->operand(0) : Value();
}

// x and true ==> x,  x and false ==> false,  x and x ==> x
Value And(Node& node, Builder&) {
  if (IsSplat(node.operand(1), 1) || node.operand(0) == node.operand(1)) return node.operand(0);
  return IsSplat(node.operand(1), 0) ? node.operand(1) : Value();
}

// x or false ==> x,  x or true ==> true,  x or x ==> x
Value Or(Node& node, Builder&) {
  if (IsSplat(node.operand(1), 0) || node.operand(0) == node.operand(1)) return node.operand(0);
  return IsSplat(node.operand(1), 1) ? node.operand(1) : Value();
}

// x == x ==> true, and so on; not of floats, where NaN differs from itself
Value CompareSelf(Node& node, Builder& b) {
  if (node.operand(0) != node.operand(1) || IsFloat(node.operand(0).dtype())) return Value();
  const std::string& direction = node.attr<std::string>("direction");
  const bool equal = direction == "eq" || direction == "le" || direction == "ge";
  return Splat(b, Tensor::Scalar(DType::kBool, equal ? 1 : 0), node.type(0).shape);
}

// select(true, x, y) ==> x
Value SelectConstant(Node& node, Builder&) {
  if (IsSplat(node.operand(0), 1)) return node.operand(1);
  return IsSplat(node.operand(0), 0) ? node.operand(2) : Value();
}

// select(c, x, x) ==> x
Value SelectSame(Node& node, Builder&) { return node.operand(1) == node.operand(2) ? node.operand(1) : Value(); }

// select(not c, x, y) ==> select(c, y, x)
Value SelectNot(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "not");
  return inner ? b.Select(inner->operand(0), node.operand(2), node.operand(1)) : Value();
}

// Bits of the magnitudes that a dtype holds exactly: all integers up to 2^bits.
int ExactBits(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 53;
    case DType::kF32: return 24;
    case DType::kF16: return 11;
    case DType::kBF16: return 8;
    case DType::kBool: return 1;
    default: return static_cast<int>(SizeOf(dtype)) * 8 - (IsSigned(dtype) ? 1 : 0);
  }
}

// Whether every value of `from` is one of `to`.
bool Holds(DType to, DType from) {
  if (to == from || from == DType::kBool) return true;
  if (to == DType::kBool) return false;
  if (IsFloat(from)) {
    return to == DType::kF64 || (to == DType::kF32 && (from == DType::kF16 || from == DType::kBF16));
  }
  if (IsSigned(from) && !IsSigned(to)) return false;
  return ExactBits(to) >= ExactBits(from);
}

// convert(x, its own dtype) ==> x
Value ConvertIdentity(Node& node, Builder&) {
  return node.operand(0).dtype() == node.type(0).dtype ? node.operand(0) : Value();
}

// convert(convert(x)) ==> convert(x), where the first conversion loses nothing
Value ConvertConvert(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "convert");
  if (!inner) return Value();
  const DType from = inner->operand(0).dtype(), between = inner->type(0).dtype, to = node.type(0).dtype;
  if (!Holds(between, from)) return Value();
  // From a float integers are saturated, from an integer they wrap around: -1 to f32 to u8 is 0, -1 to u8 is 255.
  if (!IsFloat(from) && IsFloat(between) && IsInteger(to) && !Holds(to, from)) return Value();
  return b.Convert(inner->operand(0), to);
}

}  // namespace

std::vector<SimplifyRule> LogicRules() {
  return {
      {"not_not", "not", NotNot},
      {"and_trivial", "and", And, /*one_rank_only=*/true},
      {"or_trivial", "or", Or, /*one_rank_only=*/true},
      {"compare_self", "compare", CompareSelf, /*one_rank_only=*/true},
      {"select_constant", "select", SelectConstant},
      {"select_same", "select", SelectSame},
      {"select_not", "select", SelectNot},
      {"convert_identity", "convert", ConvertIdentity},
      {"convert_convert", "convert", ConvertConvert},
  };
}

}  // namespace lockstep::passes
