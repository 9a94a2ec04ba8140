#include "core/ops/term.h"

#include <algorithm>
#include <cmath>

namespace lockstep::ops {
namespace {

bool IsScalar(const TensorType& type) { return type == TensorType{DType::kF64, Shape()}; }

}  // namespace

Value Term::As(Builder& b, const TensorType& type) const {
  if (is_number()) return b.Splat(number_, type);
  if (!value_ || value_.type() == type) return value_;
  return b.Broadcast(b.Convert(value_, type.dtype), type.shape, {});
}

Term::Pair Term::Match(const Term& x, const Term& y) {
  Builder& b = BuilderOf(x, y);
  if (x.is_null() || y.is_null()) return {};
  const bool is_of_y = x.is_number() || (!y.is_number() && IsScalar(x.value_.type()));
  const TensorType type = (is_of_y ? y : x).value_.type();
  return {x.As(b, type), y.As(b, type)};
}

Term Term::Binary(std::string_view op, const Term& x, const Term& y) {
  Builder& b = BuilderOf(x, y);
  const Pair pair = Match(x, y);
  return Term(b, b.Op(op, {pair.x, pair.y}));
}

Term operator+(const Term& x, const Term& y) {
  if (x.is_number() && y.is_number()) return x.number_ + y.number_;
  if (x.Is(0)) return y;
  if (y.Is(0)) return x;
  return Term::Binary("add", x, y);
}

Term operator-(const Term& x, const Term& y) {
  if (x.is_number() && y.is_number()) return x.number_ - y.number_;
  if (y.Is(0)) return x;
  return Term::Binary("sub", x, y);
}

Term operator*(const Term& x, const Term& y) {
  if (x.is_number() && y.is_number()) return x.number_ * y.number_;
  if (x.Is(0) || y.Is(0)) return 0.0;
  if (x.Is(1)) return y;
  if (y.Is(1)) return x;
  return Term::Binary("mul", x, y);
}

Term operator/(const Term& x, const Term& y) {
  if (x.is_number() && y.is_number()) return x.number_ / y.number_;
  if (y.Is(1)) return x;
  return Term::Binary("div", x, y);
}

Term Sqrt(const Term& x) { return x.is_number() ? Term(std::sqrt(x.number_)) : x.Unary("sqrt"); }
Term Rsqrt(const Term& x) { return x.is_number() ? Term(1 / std::sqrt(x.number_)) : x.Unary("rsqrt"); }

Term Abs(const Term& x) { return x.is_number() ? Term(std::abs(x.number_)) : x.Unary("abs"); }
Term Sign(const Term& x) { return x.is_number() ? Term((x.number_ > 0) - (x.number_ < 0)) : x.Unary("sign"); }

Term Max(const Term& x, const Term& y) {
  return x.is_number() && y.is_number() ? Term(std::max(x.number_, y.number_)) : Term::Binary("max", x, y);
}

Term Min(const Term& x, const Term& y) {
  return x.is_number() && y.is_number() ? Term(std::min(x.number_, y.number_)) : Term::Binary("min", x, y);
}

Term IfGreater(const Term& x, const Term& y, const Term& yes, const Term& no) {
  if (x.is_number() && y.is_number()) return x.number_ > y.number_ ? yes : no;
  Builder& b = Term::BuilderOf(x, y);
  const Term::Pair compared = Term::Match(x, y);
  const Value condition = b.Compare(compared.x, compared.y, "gt");
  if (!condition || yes.is_null() || no.is_null()) return Term(b, Value());
  // Of the choices the tensor, if one is, says the type; of numbers and scalars the operands.
  const auto is_tensor = [](const Term& term) { return !term.is_number() && !IsScalar(term.value_.type()); };
  const TensorType type = is_tensor(yes) ? yes.value_.type() : is_tensor(no) ? no.value_.type() : compared.x.type();
  const Value spread = condition.shape() == type.shape ? condition : b.Broadcast(condition, type.shape, {});
  return Term(b, b.Select(spread, yes.As(b, type), no.As(b, type)));
}

// In f32 as 1 - exp(p) = 2t / (t - 1) with t = tanh(p / 2) and p = step * log(beta), which loses nothing where p is
// small; and log(beta) of a number close to 1 as log1p(beta - 1), of a difference that f64 has exactly.
Term OneMinusPower(const Term& beta, const Term& step, DType dtype) {
  Builder& b = *step.b_;
  if (dtype == DType::kF64) {
    const Term::Pair pair = Term::Match(beta, step);
    return 1 - Term(b, b.Op("pow", {pair.x, pair.y}));
  }
  const auto in_f32 = [&](std::string_view op, const Term& x) {
    const Value value = b.Unary(op, b.Convert(x.value_, DType::kF32));
    return Term(b, b.Convert(value, DType::kF64));
  };
  const Term log = beta.is_number() ? Term(std::log(beta.number_)) : in_f32("log1p", beta - 1);
  const Term t = in_f32("tanh", step * (log / 2));
  return 2 * t / (t - 1);
}

// It is 1 / (e^q - 1) with q = -step * log(beta), whose series is that of Bernoulli's numbers; up to q = 1 these terms
// leave out less than 3e-8 of what is subtracted from 1 / q.
Term PowerOverRest(double beta, const Term& step, DType dtype) {
  const Term rest = OneMinusPower(beta, step, dtype);
  const Term exact = (1 - rest) / rest;
  if (dtype == DType::kF64) return exact;
  const Term q = step * -std::log(beta), s = q * q;
  const Term series = 1 / q - 0.5 + q * (1.0 / 12 - s * (1.0 / 720 - s * (1.0 / 30240 - s * (1.0 / 1209600))));
  return IfGreater(q, 1, exact, series);
}

}  // namespace lockstep::ops
