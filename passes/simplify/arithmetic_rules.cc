// Rules about numbers. For floats, x + 0.0 is not x (for -0.0), and x - x and x * 0.0 are not 0.0 (for NaN and
// infinities).

#include <cmath>

#include "passes/simplify/constants.h"
#include "passes/simplify/letters.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

using enum Numbers;

// Returns true for 2^k and -2^k, k an integer.
bool IsPowerOfTwo(double number) {
  int exponent = 0;
  return std::isfinite(number) && std::abs(std::frexp(number, &exponent)) == 0.5;
}

// True if (x * c) * d is x * (c * d) for every float x. Scaling by a power of two is exact. If both factors grow x or
// both shrink it, the intermediate result overflows only if the final one does.
Condition ScalesExactly(AnySplat first, AnySplat second) {
  return [=](const Match& m) {
    const double c = m[first].At(0), d = m[second].At(0);
    if (!IsPowerOfTwo(c) && !IsPowerOfTwo(d)) return false;
    const bool grow = std::abs(c) >= 1 && std::abs(d) >= 1, shrink = std::abs(c) <= 1 && std::abs(d) <= 1;
    const double product = Tensor::Scalar(m[first].dtype(), c * d).At(0);
    return (grow || shrink) && std::isfinite(product) && product == c * d && product != 0;
  };
}

// True if c is 2^k or -2^k and its inverse is a number of the dtype: then division by c is multiplication by the
// inverse.
Condition HasExactInverse(AnySplat c) {
  return [c](const Match& m) {
    const double divisor = m[c].At(0);
    return IsPowerOfTwo(divisor) && Tensor::Scalar(m[c].dtype(), 1 / divisor).At(0) * divisor == 1;
  };
}

// c + x ==> x + c, for every commutative op: constants come second.
Value ConstantSecond(Node& node, Builder& b) {
  if (!node.op().has_trait(kCommutative) || node.operands().size() != 2) return Value();
  if (!IsConstant(node.operand(0)) || IsConstant(node.operand(1))) return Value();
  return b.Op(node.op_name(), {node.operand(1), node.operand(0)}, node.attributes());
}

// f(f(x)) ==> f(x), such as relu(relu(x))
Value Idempotent(Node& node, Builder&) { return MadeBy(node.operand(0), node.op()) ? node.operand(0) : Value(); }

// f(f(x)) ==> x, such as neg(neg(x))
Value Involution(Node& node, Builder&) {
  const Node* inner = MadeBy(node.operand(0), node.op());
  return inner ? inner->operand(0) : Value();
}

}  // namespace

std::vector<SimplifyRule> ArithmeticRules() {
  return {
      {"constant_second", kCommutative, ConstantSecond},
      {"idempotent", kIdempotent, Idempotent},
      {"involution", kInvolution, Involution},

      {"add_zero", kFloats, x + -0.0, x},  // -0.0 + 0.0 is 0.0
      {"add_integer_zero", kIntegers, x + 0, x},
      {"add_neg", kAll, x + -y, x - y},
      {"add_add", kIntegers, (x + c0) + c1, x + Fold(c0 + c1)},

      {"sub_zero", kAll, x - 0, x},  // -0.0 - -0.0 is 0.0
      {"sub_self", kIntegers, x - x, 0, GlobalTypes()},
      {"sub_neg", kAll, x - -y, x + y},

      {"mul_one", kAll, x * 1, x},
      {"mul_zero", kIntegers, x * 0, 0, GlobalTypes()},
      {"mul_minus_one", kSigned, x * -1, -x},
      {"mul_neg_neg", kAll, -x * -y, x * y},
      {"mul_scaled_neg", kFloats, -x * c0, x * Fold(-c0)},
      {"mul_mul", kFloats, (x * c0) * c1, x * Fold(c0 * c1), ScalesExactly(c0, c1)},
      {"mul_mul_integers", kIntegers, (x * c0) * c1, x * Fold(c0 * c1)},

      {"div_one", kAll, x / 1, x},
      {"div_power_of_two", kFloats, x / c0, x * Fold(1 / c0), HasExactInverse(c0)},

      {"neg_of_scaled", kFloats, -Only(x * c0), x * Fold(-c0)},

      {"max_self", kAll, Max(x, x), x},
      {"min_self", kAll, Min(x, x), x},
      {"pow_one", kAll, Pow(x, 1), x},
      {"pow_two", kAll, Pow(x, 2), x * x},
      {"abs_neg", kAll, Abs(-x), Abs(x)},
  };
}

}  // namespace lockstep::passes
