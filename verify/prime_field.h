// Arithmetic modulo a prime of less than 58 bits, in Montgomery form (Montgomery, "Modular multiplication without trial
// division", 1985). Plain values; any thread.

#pragma once

#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::verify {

__extension__ typedef unsigned __int128 Wide;

// An element of the field of integers modulo kPrime.
template <uint64_t kPrime>
class Residue {
 public:
  constexpr Residue() = default;  // zero
  static constexpr Residue Of(int64_t value) {
    const int64_t rest = value % static_cast<int64_t>(kPrime);
    return Residue(Reduce(static_cast<Wide>(rest < 0 ? rest + static_cast<int64_t>(kPrime) : rest) * kSquare));
  }
  // Any 64 random bits to an element that is nearly uniform.
  static constexpr Residue OfBits(uint64_t bits) { return Of(static_cast<int64_t>(bits >> 1)); }

  constexpr uint64_t value() const { return Reduce(form_); }  // in [0, kPrime)
  constexpr bool is_zero() const { return form_ == 0; }
  constexpr bool operator==(const Residue&) const = default;

  constexpr Residue operator+(Residue other) const {
    const uint64_t sum = form_ + other.form_;
    return Residue(sum >= kPrime ? sum - kPrime : sum);
  }
  constexpr Residue operator-() const { return Residue(form_ == 0 ? 0 : kPrime - form_); }
  constexpr Residue operator-(Residue other) const { return *this + -other; }
  constexpr Residue operator*(Residue other) const { return Residue(Reduce(static_cast<Wide>(form_) * other.form_)); }
  constexpr Residue Power(uint64_t exponent) const {
    Residue result = Of(1), square = *this;
    for (; exponent > 0; exponent >>= 1, square = square * square) {
      if (exponent & 1) result = result * square;
    }
    return result;
  }
  // Requires an element other than zero (Fermat).
  constexpr Residue Inverse() const { return Power(kPrime - 2); }

  // Replaces each element but zeros by its inverse: three products for each, and one inverse (Montgomery, "Speeding the
  // Pollard and elliptic curve methods of factorization", 1987).
  static void Invert(std::vector<Residue>& elements) {
    std::vector<Residue> products;  // of the elements before each
    Residue product = Of(1);
    for (const Residue& element : elements) {
      products.push_back(product);
      if (!element.is_zero()) product = product * element;
    }
    Residue inverse = product.Inverse();
    for (size_t i = elements.size(); i-- > 0;) {
      if (elements[i].is_zero()) continue;
      inverse = inverse * std::exchange(elements[i], inverse * products[i]);
    }
  }

  // A sum of products, reduced once for many terms.
  class Products {
   public:
    void Add(Residue a, Residue b) {
      waiting_ += static_cast<Wide>(a.form_) * b.form_;
      if (++terms_ == kTerms) total_ = total(), waiting_ = 0, terms_ = 0;
    }
    Residue total() const { return total_ + Residue(Reduce(waiting_)); }

   private:
    static constexpr int kTerms = 64;  // so many products are below kPrime * 2^64
    Wide waiting_ = 0;
    int terms_ = 0;
    Residue total_;
  };

 private:
  static_assert(kPrime % 2 == 1 && kPrime < (uint64_t{1} << 58));
  explicit constexpr Residue(uint64_t form) : form_(form) {}

  static constexpr uint64_t NegatedInverse() {  // of kPrime modulo 2^64, by Newton's iteration
    uint64_t inverse = kPrime;
    for (int i = 0; i < 5; ++i) inverse *= 2 - kPrime * inverse;
    return -inverse;
  }
  static constexpr uint64_t kNegatedInverse = NegatedInverse();
  static constexpr uint64_t kSquare =  // 2^128 modulo kPrime
      static_cast<uint64_t>((static_cast<Wide>(-kPrime % kPrime) * (-kPrime % kPrime)) % kPrime);

  // x / 2^64 modulo kPrime, for x < kPrime * 2^64.
  static constexpr uint64_t Reduce(Wide x) {
    const uint64_t factor = static_cast<uint64_t>(x) * kNegatedInverse;
    const auto sum = static_cast<uint64_t>((x + static_cast<Wide>(factor) * kPrime) >> 64);
    return sum >= kPrime ? sum - kPrime : sum;
  }

  uint64_t form_ = 0;  // the element times 2^64
};

}  // namespace lockstep::verify
