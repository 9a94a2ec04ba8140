#include "core/ops/term.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace lockstep::ops {
namespace {

// The common shape of two tensors with equally many dimensions: an extent of 1 is repeated.
Shape Common(const Shape& x, const Shape& y) {
  std::vector<int64_t> extents = x.dims();
  for (size_t i = 0; i < extents.size() && y.rank() == x.rank(); ++i) {
    if (extents[i] == 1) extents[i] = y[static_cast<int64_t>(i)];
  }
  return Shape(std::move(extents));
}

// Repeats x, which has as many dimensions as `shape`, along its extents of 1.
Value Repeated(Builder& b, Value x, const Shape& shape) {
  std::vector<int64_t> kept, extents;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    if (x.shape()[i] != shape[i]) continue;
    kept.push_back(i);
    extents.push_back(shape[i]);
  }
  return b.Broadcast(b.Reshape(x, Shape(std::move(extents))), shape, std::move(kept));
}

}  // namespace

bool Term::is_scalar() const { return !is_number() && value_ && value_.type() == TensorType{DType::kF64, Shape()}; }

Value Term::As(Builder& b, const TensorType& type) const {
  if (is_number()) return b.Splat(number_, type);
  if (!value_ || value_.type() == type) return value_;
  const Value value = b.Convert(value_, type.dtype);
  if (!value) return value;
  return value.shape().rank() == type.shape.rank() ? Repeated(b, value, type.shape)
                                                   : b.Broadcast(value, type.shape, {});
}

Term::Pair Term::Match(const Term& x, const Term& y) {
  Builder& b = BuilderOf(x, y);
  if (x.is_null() || y.is_null()) return {};
  const bool is_of_y = x.is_number() || (!y.is_number() && x.is_scalar());
  TensorType type = (is_of_y ? y : x).value_.type();
  if (!x.is_number() && !y.is_number() && !x.is_scalar() && !y.is_scalar())
    type.shape = Common(x.value_.shape(), y.value_.shape());
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
  // The result has the type of the choice that is a tensor; if none is, the type of the compared operands.
  const auto is_tensor = [](const Term& term) { return !term.is_number() && !term.is_scalar(); };
  const TensorType type = is_tensor(yes) ? yes.value_.type() : is_tensor(no) ? no.value_.type() : compared.x.type();
  const Value spread = condition.shape() == type.shape ? condition : b.Broadcast(condition, type.shape, {});
  return Term(b, b.Select(spread, yes.As(b, type), no.As(b, type)));
}

// log(x^y) * share. Requires that x and y are not both known. For an x that is not known, and may be close to 1, log(x)
// is computed as log1p(x - 1), because the difference is exact in f64.
Term Term::LogOfPower(const Term& x, const Term& y, const Term& share) {
  return y * (share * (x.is_number() ? Term(std::log(x.number_)) : (x - 1).UnaryInF32("log1p")));
}

Term Term::UnaryInF32(std::string_view op) const { return Converted(DType::kF32).Unary(op).Converted(DType::kF64); }

Term Power(const Term& x, const Term& y, const Term& share, DType dtype) {
  const Term exponent = y * share;
  if (x.is_number() && exponent.is_number()) return std::pow(x.number_, exponent.number_);
  if (dtype == DType::kF64) return Term::Binary("pow", x, exponent);
  const Term log = Term::LogOfPower(x, y, share);
  return log.is_number() ? Term(std::exp(log.number_)) : log.UnaryInF32("exp");
}

// In f32 computed as 1 - exp(p) = 2t / (t - 1) with t = tanh(p / 2), which is accurate for small p.
Term OneMinusPower(const Term& x, const Term& y, DType dtype) {
  if (dtype == DType::kF64) return 1 - Power(x, y, 1, dtype);
  if (x.is_number() && y.is_number()) return -std::expm1(y.number_ * std::log(x.number_));
  const Term half = Term::LogOfPower(x, y, 0.5);
  if (half.is_number()) return -std::expm1(2 * half.number_);
  const Term t = half.UnaryInF32("tanh");
  return 2 * t / (t - 1);
}

// The result is 1 / (e^q - 1) with q = -step * log(beta), whose series has the Bernoulli numbers as coefficients. Up to
// q = 1 the omitted terms are less than 3e-8 of the difference from 1 / q.
Term PowerOverRest(double beta, const Term& step, DType dtype) {
  const Term rest = OneMinusPower(beta, step, dtype);
  const Term exact = (1 - rest) / rest;
  if (dtype == DType::kF64) return exact;
  const Term q = step * -std::log(beta), s = q * q;
  const Term series = 1 / q - 0.5 + q * (1.0 / 12 - s * (1.0 / 720 - s * (1.0 / 30240 - s * (1.0 / 1209600))));
  return IfGreater(q, 1, exact, series);
}

Term Norm(const Term& x) {
  if (x.is_null()) return x;
  Builder& b = *x.b_;
  std::vector<int64_t> dims(static_cast<size_t>(x.value_.shape().rank()));
  std::iota(dims.begin(), dims.end(), 0);
  const Value wide = b.Convert(x.value_, DType::kF64);
  return Sqrt(Term(b, b.ReduceSum(b.Mul(wide, wide), dims)));
}

Term Mean(const Term& x, int64_t dim) {
  if (x.is_null()) return x;
  Builder& b = *x.b_;
  std::vector<int64_t> extents = x.value_.shape().dims();
  if (dim < 0) dim += x.value_.shape().rank();
  int64_t& extent = extents[static_cast<size_t>(dim)];
  const Term count = static_cast<double>(std::max<int64_t>(std::exchange(extent, 1), 1));  // the mean of nothing is 0
  return Term(b, b.Reshape(b.ReduceSum(x.value_, {dim}), Shape(std::move(extents)))) / count;
}

Term Transposed(const Term& x) { return Term(*x.b_, x.is_null() ? x.value_ : x.b_->Transpose(x.value_, {1, 0})); }

Term Product(const Term& x, const Term& y) { return Term(*x.b_, x.b_->MatMul(x.value_, y.value_)); }

}  // namespace lockstep::ops
