#include "verify/exact.h"

#include <bit>
#include <cmath>
#include <limits>

namespace lockstep::verify {
namespace {

// Generates the subgroup of order kExponentPrime.
constexpr Base kRootOfUnity = Base::Of(13985600754395030);
static_assert(kRootOfUnity.Power(kExponentPrime) == Base::Of(1) && !(kRootOfUnity == Base::Of(1)));

constexpr int64_t kLargestSmallInteger = int64_t{1} << 40;

struct Fraction {
  int64_t numerator, denominator;
};

double Rounded(double value, DType dtype) {
  return DispatchDType(dtype, [&](auto tag) -> double {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
      return static_cast<double>(static_cast<float>(T(static_cast<float>(value))));
    else return static_cast<double>(static_cast<T>(value));
  });
}

// True for numbers of few bits, which a program means as they are.
bool IsOfSixteenBits(double value) {
  return Rounded(value, DType::kBF16) == value || Rounded(value, DType::kF16) == value;
}

// The first convergent of the continued fraction of `value` > 0 that rounds to it; null if there is none with parts
// below 2^53.
std::optional<Fraction> SimplestFraction(double value, DType dtype) {
  constexpr double kLargest = 9007199254740992.0;
  if (value >= kLargest) return std::nullopt;
  double before_numerator = 1, before_denominator = 0, numerator = std::floor(value), denominator = 1;
  long double rest = static_cast<long double>(value) - static_cast<long double>(numerator);
  for (int i = 0; i < 64; ++i) {
    if (Rounded(numerator / denominator, dtype) == value)
      return Fraction{static_cast<int64_t>(numerator), static_cast<int64_t>(denominator)};
    if (rest <= 0) return std::nullopt;
    rest = 1 / rest;
    const double whole = static_cast<double>(std::floor(rest));
    rest -= static_cast<long double>(whole);
    const double next_numerator = whole * numerator + before_numerator,
                 next_denominator = whole * denominator + before_denominator;
    if (next_numerator >= kLargest || next_denominator >= kLargest) return std::nullopt;
    before_numerator = numerator, before_denominator = denominator;
    numerator = next_numerator, denominator = next_denominator;
  }
  return std::nullopt;
}

uint64_t HashOfText(std::string_view text) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace

uint64_t MixedBits(uint64_t bits) {  // the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)
  bits += 0x9E3779B97F4A7C15u;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return bits ^ (bits >> 31);
}

Exact Exact::Of(double value, DType dtype) {
  if (std::isnan(value)) return NaN();
  if (std::isinf(value)) return Infinity(value < 0);
  if (value == 0) return Exact();
  if (const auto fraction = IsOfSixteenBits(value) ? std::nullopt : SimplestFraction(std::abs(value), dtype)) {
    const Exact magnitude = Of(fraction->numerator) / Of(fraction->denominator);
    return value < 0 ? -magnitude : magnitude;
  }
  int exponent;
  const double mantissa = std::frexp(value, &exponent);
  return Of(static_cast<int64_t>(std::ldexp(mantissa, 53))) * Of(2).Power(exponent - 53);
}

Exact Exact::Random(uint64_t bits) {
  return Exact(Base::OfBits(MixedBits(bits)), Exponent::OfBits(MixedBits(bits ^ 0x5555555555555555u)));
}

std::optional<int64_t> Exact::small_integer() const {
  if (!is_finite() || !has_known_exponent()) return std::nullopt;
  const uint64_t value = base_.value();
  const int64_t integer = value <= kBasePrime / 2 ? static_cast<int64_t>(value)
                                                  : static_cast<int64_t>(value) - static_cast<int64_t>(kBasePrime);
  if (std::abs(integer) >= kLargestSmallInteger || !(exponent_ == Exponent::Of(integer))) return std::nullopt;
  return integer;
}

bool Exact::operator==(const Exact& other) const {
  if (!is_finite() || !other.is_finite()) return flags_ == other.flags_;
  if (!has_known_exponent() || !other.has_known_exponent()) return base_ == other.base_;
  return base_ == other.base_ && exponent_ == other.exponent_;
}

int64_t Exact::Rank() const {
  if (base_.is_zero()) return 0;
  const uint64_t value = base_.value();
  const bool is_upper = value > kBasePrime / 2;
  const auto rank = static_cast<int64_t>(MixedBits(is_upper ? kBasePrime - value : value) >> 2) + 1;
  return is_upper ? -rank : rank;
}

bool Exact::operator<(const Exact& other) const {
  if (is_infinity(true) || other.is_infinity(false)) return !(*this == other);
  if (is_infinity(false) || other.is_infinity(true)) return false;
  return Rank() < other.Rank();
}

Exact Exact::operator-() const {
  if (is_nan()) return *this;
  if (!is_finite()) return Infinity(!(flags_ & kNegative));
  Exact result = *this;
  result.base_ = -base_;
  result.exponent_ = -exponent_;
  if (flags_ & kFactor) result.factor_ = factor_.Inverse();
  return result;
}

Exact Exact::operator+(const Exact& other) const {
  const int flags = flags_ | other.flags_;
  if (flags & kInfinite) {
    if (is_finite()) return other;
    return other.is_finite() || flags_ == other.flags_ ? *this : NaN();
  }
  Exact sum(base_ + other.base_, exponent_ + other.exponent_, flags);
  if (flags & kFactor) sum.AddFactors(*this, other);
  return sum;
}

void Exact::AddFactors(const Exact& x, const Exact& y) {
  const bool both = x.flags_ & y.flags_ & kFactor;
  factor_ = both ? x.factor_ * y.factor_ : x.flags_ & kFactor ? x.factor_ : y.factor_;
}

// A number of logarithms is known to be one only if it is an integer.
void Exact::MultiplyFactor(const Exact& x, const Exact& y) {
  const bool is_x = x.flags_ & kFactor;
  const Exact &logarithm = is_x ? x : y, &times = is_x ? y : x;
  const std::optional<int64_t> count = times.flags_ & kFactor ? std::nullopt : times.small_integer();
  flags_ |= count ? kFactor : kUnknown;
  if (!count) return;
  factor_ = logarithm.factor_.Power(static_cast<uint64_t>(std::abs(*count)));
  if (*count < 0) factor_ = factor_.Inverse();
}

Exact Exact::operator*(const Exact& other) const {
  const int flags = flags_ | other.flags_;
  if (flags & kInfinite) {
    if (is_nan() || other.is_nan() || is_zero() || other.is_zero()) return NaN();
    const Exact zero;
    return Infinity((*this < zero) != (other < zero));
  }
  // Zero times anything is zero, of which the exponent is known.
  if (base_.is_zero() || other.base_.is_zero()) return Exact();
  Exact product(base_ * other.base_, exponent_ * other.exponent_, flags & ~kFactor);
  if (flags & kFactor) product.MultiplyFactor(*this, other);
  return product;
}

Exact Exact::DividedBy(const Exact& other, Base inverse, Exponent inverse_exponent) const {
  if (other.is_nan() || other.is_zero()) return NaN();
  if (!other.is_finite()) return is_finite() ? Exact() : NaN();
  const bool is_known = !(other.flags_ & (kUnknown | kFactor)) && !other.exponent_.is_zero();
  return *this * Exact(inverse, is_known ? inverse_exponent : Exponent(), is_known ? other.flags_ : kUnknown);
}

Exact Exact::operator/(const Exact& other) const {
  return DividedBy(other, other.base_.Inverse(), other.exponent_.Inverse());
}

std::vector<Exact> Exact::Quotients(const std::vector<Exact>& x, const std::vector<Exact>& y) {
  std::vector<Base> bases;
  std::vector<Exponent> exponents;
  for (const Exact& number : y) {
    bases.push_back(number.base_);
    exponents.push_back(number.exponent_);
  }
  Base::Invert(bases);
  Exponent::Invert(exponents);
  std::vector<Exact> quotients;
  for (size_t i = 0; i < x.size(); ++i) quotients.push_back(x[i].DividedBy(y[i], bases[i], exponents[i]));
  return quotients;
}

Exact Exact::Power(int64_t exponent) const {
  if (exponent < 0) return Of(1) / Power(-exponent);
  if (exponent == 0) return Of(1);
  if (exponent == 1) return *this;
  if (!is_finite()) return is_infinity(true) && exponent % 2 == 0 ? Infinity(false) : *this;
  return Exact(base_.Power(static_cast<uint64_t>(exponent)), exponent_.Power(static_cast<uint64_t>(exponent)),
               flags_ & kFactor ? kUnknown : flags_);
}

Exact Exact::Exp() const {
  if (is_infinity(true)) return Exact();
  if (!is_finite()) return *this;
  const bool is_known = !(flags_ & kUnknown);
  Base base = is_known ? kRootOfUnity.Power(exponent_.value()) : RandomFunction("exp", {*this}).base_;
  if (is_known && (flags_ & kFactor)) base = base * factor_;
  if (base == Base::Of(1)) return Of(1);
  return Exact(base, Exponent::OfBits(MixedBits(~base.value())), kDrawn);
}

Exact Exact::Log() const {
  if (is_zero()) return Infinity(true);
  Exact result = RandomFunction("log", {*this});
  if (!is_finite()) return result;
  result.flags_ |= kFactor;
  result.factor_ = base_ * kRootOfUnity.Power(result.exponent_.value()).Inverse();
  return result;
}

Exact ExactProducts::total() const { return Exact(base_.total(), exponent_.total(), flags_) + other_; }

uint64_t Exact::Hash() const { return is_finite() ? MixedBits(base_.value()) : MixedBits(~uint64_t{flags_}); }

Exact RandomFunction(std::string_view name, std::initializer_list<Exact> arguments, uint64_t key) {
  uint64_t hash = MixedBits(HashOfText(name) ^ key);
  for (const Exact& argument : arguments) {
    if (argument.is_nan()) return Exact::NaN();
    hash = MixedBits(hash ^ argument.Hash());
  }
  return Exact::Random(hash);
}

}  // namespace lockstep::verify
