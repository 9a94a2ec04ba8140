// Numbers in exact arithmetic, which stand for the floats of a program. Sums, products and quotients are those of a
// finite field, so that neither the order of a sum nor the number of ranks that share it changes a result. Two programs
// that compute the same rational function agree for all inputs. Two that do not agree for a random input with a
// probability of at most d / 2^49, where d is the degree of their difference (Schwartz, 1980; Zippel, 1979).
//
// e^x is exact, too, by a second field whose elements are exponents (Wu et al., "Mirage: A Multi-Level Superoptimizer
// for Tensor Programs", OSDI 2025): the group of units of the first has a subgroup of the order of the second. So
// e^(x + y) is e^x * e^y. The exponent of e^x itself is drawn: it follows from the number e^x as if it were a random
// function of it. So softmax of softmax is exact, but that e^(e^x e^y) is e^(e^(x + y)) does not follow. log x
// remembers x: e^(y - log x) is e^y / x.
//
// Every other function of a number (tanh, sqrt, …) is a random function of it: equal arguments give equal results, and
// nothing else is known. Numbers are ordered at random, except that x < y exactly if -y < -x. So max and min are
// associative, commutative and idempotent, and max(x, y) is -min(-x, -y); but x < y does not follow from x - y < 0.
//
// Plain values; any thread.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "verify/prime_field.h"

namespace lockstep::verify {

inline constexpr uint64_t kExponentPrime = 1125899906842597, kBasePrime = 105834591243204119;
static_assert((kBasePrime - 1) % kExponentPrime == 0);

using Base = Residue<kBasePrime>;
using Exponent = Residue<kExponentPrime>;

class Exact {
 public:
  constexpr Exact() = default;  // zero
  static Exact Of(int64_t integer) { return Exact(Base::Of(integer), Exponent::Of(integer)); }
  // The simplest fraction that rounds to `value` in `dtype` (the first convergent of the continued fraction that does):
  // 1/3 for the float 0.33333334. So the reciprocal of a count, and a learning rate of 0.1, are what was meant. A
  // number that bf16 or f16 represents is itself: so it stays the same number when it is converted.
  static Exact Of(double value, DType dtype);
  static Exact NaN() { return Exact(Base(), Exponent(), kInfinite | kNotANumber); }
  static Exact Infinity(bool negative) {
    return Exact(Base(), Exponent(), negative ? kInfinite | kNegative : kInfinite);
  }
  // A number that follows from these bits, and looks random.
  static Exact Random(uint64_t bits);

  bool is_finite() const { return !(flags_ & kInfinite); }
  bool is_nan() const { return flags_ & kNotANumber; }
  bool is_zero() const { return is_finite() && base_.is_zero(); }
  // The integer that the number is, if that is small (below 2^40) and an exponent is known.
  std::optional<int64_t> small_integer() const;

  // True if no value that is known of both numbers differs. A NaN equals a NaN.
  bool operator==(const Exact& other) const;
  // The order described above, with infinities at its ends. Requires that neither is a NaN.
  bool operator<(const Exact& other) const;

  Exact operator-() const;
  Exact operator+(const Exact& other) const;
  Exact operator-(const Exact& other) const { return *this + -other; }
  Exact operator*(const Exact& other) const;
  Exact operator/(const Exact& other) const;  // NaN if `other` is zero
  // x[i] / y[i], in less time than one by one. Requires equal sizes.
  static std::vector<Exact> Quotients(const std::vector<Exact>& x, const std::vector<Exact>& y);
  Exact& operator+=(const Exact& other) { return *this = *this + other; }
  Exact Power(int64_t exponent) const;
  Exact Exp() const;
  // A random function, but that its exponential is the number. Minus infinity for zero.
  Exact Log() const;

  // 64 bits that follow from the number.
  uint64_t Hash() const;

 private:
  friend class ExactProducts;
  static constexpr int kDrawn = 1;        // the exponent is drawn, and has no part in comparisons
  static constexpr int kUnknown = 2;      // the exponent is not known
  static constexpr int kFactor = 4;       // e^x is the power of the generator with the exponent, times factor_
  static constexpr int kInfinite = 8;     // no number of the field: infinity, or
  static constexpr int kNegative = 16;    // minus infinity, or
  static constexpr int kNotANumber = 32;  // NaN
  Exact(Base base, Exponent exponent, int flags = 0)
      : base_(base), exponent_(exponent), flags_(static_cast<uint8_t>(flags)) {}
  bool is_infinity(bool negative) const { return flags_ == (negative ? kInfinite | kNegative : kInfinite); }
  bool has_known_exponent() const { return !(flags_ & (kDrawn | kUnknown)); }
  Exact DividedBy(const Exact& other, Base inverse, Exponent inverse_exponent) const;  // the inverses of other's parts
  int64_t Rank() const;                                 // the place in the order, of a finite number
  void AddFactors(const Exact& x, const Exact& y);      // of the sum x + y
  void MultiplyFactor(const Exact& x, const Exact& y);  // of the product x * y

  Base base_;
  Exponent exponent_;
  Base factor_;
  uint8_t flags_ = 0;  // a sum or product of numbers has those of all
};

// A sum of products, such as an element of a matrix product. The same number as the sum of `a * b`, and so are their
// exponentials.
class ExactProducts {
 public:
  void Add(const Exact& a, const Exact& b) {
    const uint8_t flags = a.flags_ | b.flags_;
    if (flags & (Exact::kInfinite | Exact::kFactor)) return AddOther(a * b);
    if (a.base_.is_zero() || b.base_.is_zero()) return;
    base_.Add(a.base_, b.base_);
    exponent_.Add(a.exponent_, b.exponent_);
    flags_ |= flags;
  }
  Exact total() const;

 private:
  void AddOther(const Exact& product) { other_ = other_ + product; }
  Base::Products base_;
  Exponent::Products exponent_;
  uint8_t flags_ = 0;
  Exact other_;
};

// The random function `name` of these numbers, one of many, which `key` selects.
Exact RandomFunction(std::string_view name, std::initializer_list<Exact> arguments, uint64_t key = 0);

// Mixes the bits of a word, so that equal results mean equal arguments.
uint64_t MixedBits(uint64_t bits);

}  // namespace lockstep::verify
