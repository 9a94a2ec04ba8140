// Arithmetic, comparisons and conversions of elements.

#include <algorithm>

#include "core/comparison.h"
#include "verify/meaning.h"

namespace lockstep::verify {
namespace {

template <Exact (*kFunction)(const Exact&)>
absl::Status Unary(Meaning& m) {
  std::transform(m.x().begin(), m.x().end(), m.y().begin(), kFunction);
  return absl::OkStatus();
}

template <Exact (*kFunction)(const Exact&, const Exact&)>
absl::Status Binary(Meaning& m) {
  std::transform(m.x(0).begin(), m.x(0).end(), m.x(1).begin(), m.y().begin(), kFunction);
  return absl::OkStatus();
}

Exact Negative(const Exact& x) { return -x; }
Exact Exponential(const Exact& x) { return x.Exp(); }
Exact Logarithm(const Exact& x) { return x.Log(); }
Exact LogarithmOfOnePlus(const Exact& x) { return Logarithm(Exact::Of(1) + x); }
Exact Root(const Exact& x) { return x.is_zero() ? x : RandomFunction("sqrt", {x}); }
Exact ReciprocalRoot(const Exact& x) { return Exact::Of(1) / Root(x); }
Exact Larger(const Exact& x, const Exact& y) { return Combined(ReduceKind::kMax, x, y); }
Exact Smaller(const Exact& x, const Exact& y) { return Combined(ReduceKind::kMin, x, y); }
Exact Magnitude(const Exact& x) { return Larger(x, -x); }
Exact Rectified(const Exact& x) { return Larger(x, Exact()); }
Exact Sign(const Exact& x) {
  if (x.is_nan() || x.is_zero()) return x;
  return Exact::Of(x < Exact() ? -1 : 1);
}
// x / (1 + |x|)
Exact Softsign(const Exact& x) { return x / (Exact::Of(1) + Magnitude(x)); }

Exact Sum(const Exact& x, const Exact& y) { return x + y; }
Exact Difference(const Exact& x, const Exact& y) { return x - y; }
Exact Product(const Exact& x, const Exact& y) { return x * y; }

absl::Status Divide(Meaning& m) {
  m.y() = Exact::Quotients(m.x(0), m.x(1));
  return absl::OkStatus();
}

Exact PowerOf(const Exact& x, const Exact& y) {
  if (const std::optional<int64_t> exponent = y.small_integer()) return x.Power(*exponent);
  if (y == Exact::Of(1) / Exact::Of(2)) return Root(x);
  return (y * x.Log()).Exp();
}

bool Holds(Comparison comparison, const Exact& x, const Exact& y) {
  if (x.is_nan() || y.is_nan()) return comparison == Comparison::kNe;
  switch (comparison) {
    case Comparison::kEq: return x == y;
    case Comparison::kNe: return !(x == y);
    case Comparison::kLt: return x < y;
    case Comparison::kLe: return !(y < x);
    case Comparison::kGt: return y < x;
    case Comparison::kGe: return !(x < y);
  }
  return false;
}

absl::Status Compare(Meaning& m) {
  const Comparison comparison = *ComparisonFromName(m.attr<std::string>("direction"));
  const std::span<bool> out = m.result().integers().mutable_data<bool>();
  for (size_t i = 0; i < out.size(); ++i) out[i] = Holds(comparison, m.x(0)[i], m.x(1)[i]);
  return absl::OkStatus();
}

absl::Status Select(Meaning& m) {
  const std::span<const bool> condition = m.operand(0).integers().data<bool>();
  for (size_t i = 0; i < condition.size(); ++i) m.y()[i] = condition[i] ? m.x(1)[i] : m.x(2)[i];
  return absl::OkStatus();
}

// Rounding is not exact arithmetic: a float stays the number that it is, in any float dtype.
absl::Status Convert(Meaning& m) {
  const ExactTensor& x = m.operand(0);
  if (x.is_exact() && m.result().is_exact()) {
    m.y() = m.x();
    return absl::OkStatus();
  }
  if (m.result().is_exact()) {
    for (size_t i = 0; i < x.size(); ++i)
      m.y()[i] = Exact::Of(static_cast<int64_t>(x.integers().At(static_cast<int64_t>(i))));
    return absl::OkStatus();
  }
  Tensor wide({DType::kF64, x.shape()});
  for (size_t i = 0; i < x.size(); ++i) {
    const Exact& number = m.x()[i];
    double& integer = wide.mutable_data<double>()[i];
    if (m.result().dtype() == DType::kBool) integer = number.is_zero() ? 0 : 1;
    else if (const auto small = number.small_integer()) integer = static_cast<double>(*small);
    else {
      m.Assume("a float that is no integer becomes a random integer from 0 to 3");
      integer = static_cast<double>(number.Hash() % 4);
    }
  }
  m.result().integers() = wide.Converted(m.result().dtype());
  return absl::OkStatus();
}

absl::Status StopGradient(Meaning& m) {
  m.result() = m.operand(0);
  return absl::OkStatus();
}

}  // namespace

std::map<std::string_view, MeaningFn> ElementwiseMeanings() {
  return {
      {"neg", Unary<Negative>},
      {"abs", Unary<Magnitude>},
      {"sign", Unary<Sign>},
      {"exp", Unary<Exponential>},
      {"log", Unary<Logarithm>},
      {"log1p", Unary<LogarithmOfOnePlus>},
      {"sqrt", Unary<Root>},
      {"rsqrt", Unary<ReciprocalRoot>},
      {"softsign", Unary<Softsign>},
      {"relu", Unary<Rectified>},
      {"add", Binary<Sum>},
      {"sub", Binary<Difference>},
      {"mul", Binary<Product>},
      {"div", Divide},
      {"max", Binary<Larger>},
      {"min", Binary<Smaller>},
      {"pow", Binary<PowerOf>},
      {"compare", Compare},
      {"select", Select},
      {"convert", Convert},
      {"stop_gradient", StopGradient},
  };
}

}  // namespace lockstep::verify
