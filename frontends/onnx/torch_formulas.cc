#include "frontends/onnx/torch_formulas.h"

#include <numbers>

#include "core/builder.h"

namespace lockstep {
namespace {

// The node that computes x if it is of this op, else null.
const Node* MadeBy(Value x, std::string_view op) { return x && x.node->op_name() == op ? x.node : nullptr; }

Value Log1pOfExp(Builder& b, Value negative) { return b.Unary("log1p", b.Exp(negative)); }

// min(x, 0) - log1p(exp(-|x|)). At 0 the minimum has half of the gradient and |x| none.
Value LogSigmoid(Builder& b, Value x) {
  return b.Sub(b.Min(x, b.SplatLike(0.0, x)), Log1pOfExp(b, b.Neg(b.Unary("abs", x))));
}

// max(x, y) + log1p(exp(-|x - y|)). The difference of equal infinities is taken as 0.
Value LogAddExp(Builder& b, Value x, Value y) {
  const Value difference = b.Select(b.Compare(x, y, "eq"), b.SplatLike(0.0, x), b.Sub(x, y));
  return b.Add(b.Max(x, y), Log1pOfExp(b, b.Neg(b.Unary("abs", difference))));
}

// The value of which x is a multiple, or the elements of which it has in another dtype or shape.
Value WithoutFactors(Value x) {
  while (MadeBy(x, "div") || MadeBy(x, "convert") || MadeBy(x, "broadcast") || MadeBy(x, "reshape") ||
         (MadeBy(x, "mul") && x.node->operand(0) != x.node->operand(1))) {
    x = x.node->operand(0);
  }
  return x;
}

// `inside(sum)` where the sum is not 0, else 0. In place of a 0, `inside` gets a 1, so that the gradient stays finite.
template <typename F>
Value UnlessZero(Builder& b, Value sum, F inside) {
  if (!sum) return sum;
  const Value zero = b.SplatLike(0.0, sum), is_zero = b.Compare(sum, zero, "eq");
  return b.Select(is_zero, zero, inside(b.Select(is_zero, b.SplatLike(1.0, sum), sum)));
}

// select(x == 0, 1, sin(pi x) / (pi x)). The gradient at 0 is 0.
Value Sinc(Builder& b, Value x_is_zero) {
  const Node* compare = MadeBy(x_is_zero, "compare");
  if (!compare) return Value();
  const Value x = compare->operand(0), one = b.SplatLike(1.0, x);
  const Value angle = b.Scale(b.Select(x_is_zero, one, x), std::numbers::pi);
  return b.Select(x_is_zero, one, b.Div(b.Unary("sin", angle), angle));
}

// x log(y). The gradients are 0 where x is 0 and y not above 0. `product` is select(y is NaN, y, x log(y)).
Value XLogY(Builder& b, Value x_is_zero, Value x, Value product) {
  const Node* select = MadeBy(product, "select");
  if (!select) return Value();
  const Value y = select->operand(1), zero = b.SplatLike(0.0, y);
  const Value vanishes = b.Op("and", {x_is_zero, b.Compare(y, zero, "le")});
  return b.Mul(x, b.Log(b.Select(vanishes, b.SplatLike(1.0, y), y)));
}

// The angle of (x, y) by the arctangent of a quotient that is at most 1. The gradient at the origin is 0. `formula` is
// select(x < 0, another, atan(y / x)).
Value Atan2(Builder& b, Value formula) {
  const Node* select = MadeBy(formula, "select");
  const Node* atan = select ? MadeBy(select->operand(2), "atan") : nullptr;
  const Node* quotient = atan ? MadeBy(atan->operand(0), "div") : nullptr;
  if (!quotient) return Value();
  const Value y = quotient->operand(0), x = quotient->operand(1), zero = b.SplatLike(0.0, x);
  const Value is_steep = b.Compare(b.Unary("abs", y), b.Unary("abs", x), "gt");
  const Value is_origin = b.Op("and", {b.Compare(x, zero, "eq"), b.Compare(y, zero, "eq")});
  const Value divisor = b.Select(is_origin, b.SplatLike(1.0, x), b.Select(is_steep, y, x));
  const Value angle = b.Unary("atan", b.Div(b.Select(is_steep, x, y), divisor));
  const auto signed_like_y = [&](double turn) {
    return b.Select(b.Compare(y, zero, "lt"), b.SplatLike(-turn, x), b.SplatLike(turn, x));
  };
  const Value flat = b.Add(angle, b.Select(b.Compare(x, zero, "lt"), signed_like_y(std::numbers::pi), zero));
  const Value steep = b.Sub(signed_like_y(std::numbers::pi / 2), angle);
  return b.Select(is_origin, zero, b.Select(is_steep, steep, flat));
}

}  // namespace

Value LogOf(Builder& b, Value x) {
  if (const Node* sigmoid = MadeBy(x, "sigmoid")) return LogSigmoid(b, sigmoid->operand(0));
  if (const Node* sum = MadeBy(x, "add")) {
    const Node *left = MadeBy(sum->operand(0), "exp"), *right = MadeBy(sum->operand(1), "exp");
    if (left && right) return LogAddExp(b, left->operand(0), right->operand(0));
  }
  return b.Log(x);
}

Value LogitOf(Builder& b, Value quotient) {
  const Node* node = MadeBy(quotient, "div");
  return node ? b.Sub(b.Log(node->operand(0)), b.Log(node->operand(1))) : LogOf(b, quotient);
}

Value NormOf(Builder& b, Value sum_of_squares) {
  return UnlessZero(b, sum_of_squares, [&](Value sum) { return b.Sqrt(sum); });
}

Value NormOf(Builder& b, Value sum_of_powers, Value power) {
  return UnlessZero(b, sum_of_powers, [&](Value sum) { return b.Op("pow", {sum, power}); });
}

bool IsVariance(Value x) {
  const Node* sum = MadeBy(WithoutFactors(x), "reduce_sum");
  const Node* square = sum ? MadeBy(sum->operand(0), "mul") : nullptr;
  if (!square || square->operand(0) != square->operand(1)) return false;
  const Node* centered = MadeBy(square->operand(0), "sub");
  const Node* mean = centered ? MadeBy(WithoutFactors(centered->operand(1)), "reduce_sum") : nullptr;
  return mean && WithoutFactors(mean->operand(0)) == WithoutFactors(centered->operand(0));
}

bool IsSum(Value x) { return MadeBy(x, "reduce_sum") != nullptr; }

Value BoundedLog(Builder& b, Value log_of_x, Value bound) {
  const Node* log = MadeBy(log_of_x, "log");
  if (!log) return Value();
  // About exp(-100). Even if it is flushed to 0, as a subnormal of f32, zeros still compare as at most that.
  constexpr double kAlmostZero = 3.7e-44;
  const Value x = log->operand(0);
  const Value is_zero = b.Compare(b.Unary("abs", x), b.SplatLike(kAlmostZero, x), "le");
  return b.Select(is_zero, bound, b.Max(b.Log(b.Select(is_zero, b.SplatLike(1.0, x), x)), bound));
}

Value SelectOf(Builder& b, const std::string& name, Value condition, Value yes, Value no) {
  if (name == "sinc.default") return Sinc(b, condition);
  if (name.starts_with("xlogy.") && MadeBy(condition, "compare")) return XLogY(b, condition, yes, no);
  if (name == "atan2.default" && MadeBy(condition, "compare")) return Atan2(b, no);
  return Value();
}

}  // namespace lockstep
