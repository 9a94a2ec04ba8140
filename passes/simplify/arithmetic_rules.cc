// Rules about numbers. Of floats, x + 0.0 is not x (for -0.0), x - x and x * 0.0 are not 0.0 (for NaN and infinities).

#include <cmath>
#include <functional>
#include <type_traits>

#include "core/op_def.h"
#include "passes/simplify/rule.h"

namespace lockstep::passes {
namespace {

bool IsFloatNode(const Node& node) { return IsFloat(node.type(0).dtype); }

// c + x ==> x + c, and so for every commutative op: constants come second, where the other rules look for them.
Value ConstantSecond(Node& node, Builder& b) {
  if (!node.op().has_trait(kCommutative) || node.operands().size() != 2) return Value();
  if (!IsConstant(node.operand(0)) || IsConstant(node.operand(1))) return Value();
  return b.Op(node.op_name(), {node.operand(1), node.operand(0)}, node.attributes());
}

// x + 0 ==> x. For floats the zero is -0.0: -0.0 + 0.0 is 0.0.
Value AddZero(Node& node, Builder&) {
  return IsSplat(node.operand(1), IsFloatNode(node) ? -0.0 : 0.0) ? node.operand(0) : Value();
}

// x - 0 ==> x
Value SubZero(Node& node, Builder&) { return IsSplat(node.operand(1), 0.0) ? node.operand(0) : Value(); }

// x * 1 ==> x
Value MulOne(Node& node, Builder&) { return IsSplat(node.operand(1), 1.0) ? node.operand(0) : Value(); }

// x * 0 ==> 0, of integers
Value MulZero(Node& node, Builder&) {
  return !IsFloatNode(node) && IsSplat(node.operand(1), 0.0) ? node.operand(1) : Value();
}

// x * -1 ==> -x
Value MulMinusOne(Node& node, Builder& b) {
  return IsSigned(node.type(0).dtype) && IsSplat(node.operand(1), -1.0) ? b.Neg(node.operand(0)) : Value();
}

// x / 1 ==> x
Value DivOne(Node& node, Builder&) { return IsSplat(node.operand(1), 1.0) ? node.operand(0) : Value(); }

// x / 2^k ==> x * 2^-k, of floats
Value DivPowerOfTwo(Node& node, Builder& b) {
  const std::optional<Tensor> divisor = SplatOf(node.operand(1));
  if (!IsFloatNode(node) || !divisor || !IsPowerOfTwo(divisor->At(0))) return Value();
  const Tensor factor = Tensor::Scalar(divisor->dtype(), 1.0 / divisor->At(0));
  if (factor.At(0) * divisor->At(0) != 1.0) return Value();  // 2^-k is not a number of this dtype
  return b.Mul(node.operand(0), Splat(b, factor, node.type(0).shape));
}

// x - x ==> 0, of integers
Value SubSelf(Node& node, Builder& b) {
  if (IsFloatNode(node) || node.operand(0) != node.operand(1)) return Value();
  return Splat(b, Tensor::Scalar(node.type(0).dtype, 0), node.type(0).shape);
}

// x + -y ==> x - y
Value AddNeg(Node& node, Builder& b) {
  if (Node* neg = MadeBy(node.operand(1), "neg")) return b.Sub(node.operand(0), neg->operand(0));
  if (Node* neg = MadeBy(node.operand(0), "neg")) return b.Sub(node.operand(1), neg->operand(0));
  return Value();
}

// x - -y ==> x + y
Value SubNeg(Node& node, Builder& b) {
  Node* neg = MadeBy(node.operand(1), "neg");
  return neg ? b.Add(node.operand(0), neg->operand(0)) : Value();
}

// -x * -y ==> x * y
Value MulNegNeg(Node& node, Builder& b) {
  Node *x = MadeBy(node.operand(0), "neg"), *y = MadeBy(node.operand(1), "neg");
  return x && y ? b.Mul(x->operand(0), y->operand(0)) : Value();
}

// --x ==> x
Value NegNeg(Node& node, Builder&) {
  Node* neg = MadeBy(node.operand(0), "neg");
  return neg ? neg->operand(0) : Value();
}

// -(x * c) ==> x * -c
Value NegOfScaled(Node& node, Builder& b) {
  Node* mul = MadeBy(node.operand(0), "mul");
  if (!mul || !HasOneUse(b.graph(), mul->result())) return Value();
  const std::optional<Tensor> factor = SplatOf(mul->operand(1));
  if (!factor || !IsFloatNode(node)) return Value();
  return b.Mul(mul->operand(0), Splat(b, Tensor::Scalar(factor->dtype(), -factor->At(0)), node.type(0).shape));
}

// -x * c ==> x * -c
Value ScaledNeg(Node& node, Builder& b) {
  Node* neg = MadeBy(node.operand(0), "neg");
  const std::optional<Tensor> factor = SplatOf(node.operand(1));
  if (!neg || !factor || !IsFloatNode(node)) return Value();
  return b.Mul(neg->operand(0), Splat(b, Tensor::Scalar(factor->dtype(), -factor->At(0)), node.type(0).shape));
}

// Whether (x * c) * d is x * (c * d) for every float x: scaling by a power of two is exact, and when both factors grow x, or
// both shrink it, no infinity appears on the way that the product would not give.
bool ScalesCompose(double c, double d, const Tensor& product) {
  if (!IsPowerOfTwo(c) && !IsPowerOfTwo(d)) return false;
  const bool grow = std::abs(c) >= 1 && std::abs(d) >= 1, shrink = std::abs(c) <= 1 && std::abs(d) <= 1;
  return (grow || shrink) && std::isfinite(product.At(0)) && product.At(0) == c * d && product.At(0) != 0;
}

// c op d of two integers, modulo 2^n as the ops are.
template <typename F>
Tensor Wrapping(const Tensor& c, const Tensor& d, F op) {
  Tensor result(c.type());
  DispatchDType(c.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      result.mutable_data<T>()[0] =
          static_cast<T>(op(static_cast<uint64_t>(c.data<T>()[0]), static_cast<uint64_t>(d.data<T>()[0])));
    }
  });
  return result;
}

// (x * c) * d ==> x * (c * d): of integers always, of floats where it is exact
Value MulMul(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "mul");
  if (!inner) return Value();
  const std::optional<Tensor> c = SplatOf(inner->operand(1)), d = SplatOf(node.operand(1));
  if (!c || !d) return Value();
  Tensor product;
  if (IsFloatNode(node)) {
    product = Tensor::Scalar(c->dtype(), c->At(0) * d->At(0));
    if (!ScalesCompose(c->At(0), d->At(0), product)) return Value();
  } else {
    product = Wrapping(*c, *d, std::multiplies<uint64_t>());
  }
  return b.Mul(inner->operand(0), Splat(b, product, node.type(0).shape));
}

// (x + c) + d ==> x + (c + d), of integers
Value AddAdd(Node& node, Builder& b) {
  Node* inner = MadeBy(node.operand(0), "add");
  if (!inner || IsFloatNode(node)) return Value();
  const std::optional<Tensor> c = SplatOf(inner->operand(1)), d = SplatOf(node.operand(1));
  if (!c || !d) return Value();
  const Tensor sum = Wrapping(*c, *d, std::plus<uint64_t>());
  return b.Add(inner->operand(0), Splat(b, sum, node.type(0).shape));
}

// max(x, x) ==> x
Value SameOperands(Node& node, Builder&) { return node.operand(0) == node.operand(1) ? node.operand(0) : Value(); }

// x ^ 1 ==> x
Value PowOne(Node& node, Builder&) { return IsSplat(node.operand(1), 1.0) ? node.operand(0) : Value(); }

// x ^ 2 ==> x * x
Value PowTwo(Node& node, Builder& b) {
  return IsSplat(node.operand(1), 2.0) ? b.Mul(node.operand(0), node.operand(0)) : Value();
}

// f(f(x)) ==> f(x)
Value Idempotent(Node& node, Builder&) { return MadeBy(node.operand(0), node.op_name()) ? node.operand(0) : Value(); }

// |-x| ==> |x|
Value AbsNeg(Node& node, Builder& b) {
  Node* neg = MadeBy(node.operand(0), "neg");
  return neg ? b.Unary("abs", neg->operand(0)) : Value();
}

}  // namespace

std::vector<SimplifyRule> ArithmeticRules() {
  return {
      {"constant_second", "", ConstantSecond},
      {"add_zero", "add", AddZero},
      {"add_neg", "add", AddNeg},
      {"add_add", "add", AddAdd},
      {"sub_zero", "sub", SubZero},
      {"sub_self", "sub", SubSelf, /*one_rank_only=*/true},
      {"sub_neg", "sub", SubNeg},
      {"mul_one", "mul", MulOne},
      {"mul_zero", "mul", MulZero, /*one_rank_only=*/true},
      {"mul_minus_one", "mul", MulMinusOne},
      {"mul_neg_neg", "mul", MulNegNeg},
      {"mul_scaled_neg", "mul", ScaledNeg},
      {"mul_mul", "mul", MulMul},
      {"div_one", "div", DivOne},
      {"div_power_of_two", "div", DivPowerOfTwo},
      {"neg_neg", "neg", NegNeg},
      {"neg_of_scaled", "neg", NegOfScaled},
      {"max_self", "max", SameOperands},
      {"min_self", "min", SameOperands},
      {"pow_one", "pow", PowOne},
      {"pow_two", "pow", PowTwo},
      {"relu_relu", "relu", Idempotent},
      {"abs_abs", "abs", Idempotent},
      {"abs_neg", "abs", AbsNeg},
      {"floor_floor", "floor", Idempotent},
      {"ceil_ceil", "ceil", Idempotent},
  };
}

}  // namespace lockstep::passes
