// Rules about truth values, selection, conversion and bits.

#include <algorithm>
#include <map>

#include "passes/simplify/letters.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using enum Numbers;

constexpr AnyAttr<std::string> direction{1};
constexpr AnyAttr<DType> between{1}, to{2};

// Returns the direction of the negated comparison.
AttrExpr<std::string> Opposite(AnyAttr<std::string> direction) {
  return {[=](const Match& m) -> std::string {
    static const std::map<std::string, std::string> opposites = {{"eq", "ne"}, {"ne", "eq"}, {"lt", "ge"},
                                                                 {"ge", "lt"}, {"gt", "le"}, {"le", "gt"}};
    return opposites.at(m[direction]);
  }};
}

// True if the negation of a comparison is the opposite comparison. For floats only eq and ne: NaN is neither below a
// number nor at least it, and differs from every number.
Condition HasOpposite(AnyValue x, AnyAttr<std::string> direction) {
  return [=](const Match& m) { return !IsFloat(m[x].dtype()) || m[direction] == "eq" || m[direction] == "ne"; };
}

Condition IsOneOf(AnyAttr<std::string> word, std::vector<std::string> words) {
  return [=](const Match& m) { return std::find(words.begin(), words.end(), m[word]) != words.end(); };
}

// Returns the largest number of bits such that the dtype holds all integers with magnitudes up to 2^bits exactly (for
// integer dtypes: below 2^bits).
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

// Returns true if the dtype `to` has every value of `from`.
bool Holds(DType to, DType from) {
  if (to == from || from == DType::kBool) return true;
  if (to == DType::kBool) return false;
  if (IsFloat(from)) {
    return to == DType::kF64 || (to == DType::kF32 && (from == DType::kF16 || from == DType::kBF16));
  }
  if (IsSigned(from) && !IsSigned(to)) return false;
  return ExactBits(to) >= ExactBits(from);
}

Condition HasDType(AnyValue x, AnyAttr<DType> dtype) {
  return [=](const Match& m) { return m[x].dtype() == m[dtype]; };
}

// True if converting x to `between` and then to `to` equals converting it to `to` at once.
Condition LosesNothing(AnyValue x, AnyAttr<DType> between, AnyAttr<DType> to) {
  return [=](const Match& m) {
    const DType from = m[x].dtype();
    if (!Holds(m[between], from)) return false;
    // Conversion to an integer saturates from a float and wraps around from an integer: -1 to f32 to u8 is 0, and -1 to
    // u8 is 255.
    return IsFloat(from) || !IsFloat(m[between]) || !IsInteger(m[to]) || Holds(m[to], from);
  };
}

}  // namespace

std::vector<SimplifyRule> LogicRules() {
  return {
      // For integers `true` is 1, one bit of many.
      {"and_true", kTruthValues, x & true, x, GlobalTypes()},
      {"and_false", kAll, x & false, false, GlobalTypes()},
      {"and_self", kAll, x & x, x, GlobalTypes()},

      {"or_false", kAll, x | false, x, GlobalTypes()},
      {"or_true", kTruthValues, x | true, true, GlobalTypes()},
      {"or_self", kAll, x | x, x, GlobalTypes()},

      // NaN differs from itself.
      {"compare_self", kIntegers, Compare(x, x, direction), true, GlobalTypes(),
       IsOneOf(direction, {"eq", "le", "ge"})},
      {"compare_self_strictly", kIntegers, Compare(x, x, direction), false, GlobalTypes(),
       IsOneOf(direction, {"ne", "lt", "gt"})},
      {"not_compare", kAll, !Only(Compare(x, y, direction)), Compare(x, y, Opposite(direction)),
       HasOpposite(x, direction)},

      {"select_true", kAll, Select(true, x, y), x},
      {"select_false", kAll, Select(false, x, y), y},
      {"select_same", kAll, Select(z, x, x), x},
      {"select_not", kAll, Select(!z, x, y), Select(z, y, x)},

      {"convert_identity", kAll, Convert(x, to), x, HasDType(x, to)},
      {"convert_convert", kAll, Convert(Convert(x, between), to), Convert(x, to), LosesNothing(x, between, to)},
      // A matmul can absorb a transpose of its operands, but not behind a conversion.
      {"convert_of_transpose", kAll, Convert(Only(Transpose(x, p)), to), Transpose(Convert(x, to), p)},

      // Removes the bitcasts of Held (formula.h), which stop gradients, once gradients have been made.
      {"bitcast_back", kAll, Bitcast(Bitcast(x, between), to), x, HasDType(x, to)},
  };
}

}  // namespace lockstep::passes
