#include "verify/exact.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::verify {
namespace {

std::vector<Exact> Samples() {
  std::vector<Exact> samples = {Exact(), Exact::Of(1), Exact::Of(-1), Exact::Of(1'000'003),
                                Exact::Of(1) / Exact::Of(3)};
  for (uint64_t i = 0; i < 20; ++i) samples.push_back(Exact::Random(i));
  return samples;
}

TEST(PrimeField, MultipliesAsWideIntegersDo) {
  constexpr uint64_t kPrime = kBasePrime;
  uint64_t bits = 1;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t a = (bits = MixedBits(bits)) % kPrime, b = (bits = MixedBits(bits)) % kPrime;
    const Base product = Base::Of(static_cast<int64_t>(a)) * Base::Of(static_cast<int64_t>(b));
    EXPECT_EQ(product.value(), static_cast<uint64_t>(static_cast<Wide>(a) * b % kPrime));
    EXPECT_EQ(Base::Of(static_cast<int64_t>(a)).value(), a);
  }
  EXPECT_EQ(Base::Of(-1).value(), kPrime - 1);
}

TEST(PrimeField, SumsOfProductsOfAnyLength) {
  for (int terms : {0, 1, 63, 64, 65, 1000}) {
    Base expected;
    Base::Products sum;
    for (int i = 0; i < terms; ++i) {
      const Base a = Base::OfBits(MixedBits(static_cast<uint64_t>(i))), b = -Base::Of(i + 1);
      expected = expected + a * b;
      sum.Add(a, b);
    }
    EXPECT_EQ(sum.total(), expected) << terms;
  }
}

TEST(Exact, IsAField) {
  for (const Exact& a : Samples()) {
    for (const Exact& b : Samples()) {
      EXPECT_EQ(a + b, b + a);
      EXPECT_EQ(a - b, -(b - a));
      EXPECT_EQ((a + b) * (a - b), a * a - b * b);
      if (!b.is_zero()) {
        EXPECT_EQ(a / b * b, a);
      }
    }
  }
  EXPECT_TRUE((Exact::Of(1) / Exact()).is_nan());
}

// Also if terms are zero, logarithms, infinite or NaN; then exponentials and reciprocals show which numbers they are.
TEST(ExactProducts, AreTheSumOfTheProducts) {
  std::vector<Exact> samples = {Exact(),           Exact::Of(1),       Exact::Of(-2),          Exact::Random(1),
                                Exact::Random(2),  Exact::Of(3).Exp(), Exact::Random(4).Exp(), Exact::Random(5).Log(),
                                Exact::Of(7).Log()};
  const auto expect_sum = [](const std::vector<std::pair<Exact, Exact>>& terms) {
    ExactProducts products;
    Exact sum;
    for (const auto& [a, b] : terms) {
      products.Add(a, b);
      sum += a * b;
    }
    EXPECT_EQ(products.total(), sum);
    EXPECT_EQ(products.total().Exp(), sum.Exp());
    EXPECT_EQ(products.total().is_nan(), sum.is_nan());
    EXPECT_EQ(products.total().small_integer(), sum.small_integer());
  };
  expect_sum({});
  for (const Exact& special : {Exact::Infinity(false), Exact::Infinity(true), Exact::NaN(), Exact::Of(5)}) {
    for (const Exact& a : samples) {
      for (const Exact& b : samples) {
        expect_sum({{a, b}});
        expect_sum({{a, b}, {Exact::Of(1), a}, {b, Exact()}});
        expect_sum({{a, b}, {special, a}, {b, a}});
      }
    }
  }
  EXPECT_TRUE((Exact::Infinity(false) * Exact()).is_nan());
}

TEST(Exact, ExponentialsOfSumsAreProducts) {
  for (const Exact& a : Samples()) {
    for (const Exact& b : Samples()) EXPECT_EQ((a + b).Exp(), a.Exp() * b.Exp());
  }
  EXPECT_EQ(Exact().Exp(), Exact::Of(1));
  EXPECT_EQ(Exact::Infinity(true).Exp(), Exact());
  EXPECT_FALSE(Exact::Of(1).Exp() == Exact::Of(2).Exp());
}

TEST(Exact, ExponentialsOfExponentialsAreProducts) {
  for (const Exact& a : Samples()) {
    for (const Exact& b : Samples()) {
      const Exact x = a.Exp(), y = b.Exp();
      EXPECT_EQ((x + y).Exp(), x.Exp() * y.Exp());
      EXPECT_EQ((x - a).Exp() * a.Exp(), x.Exp());
    }
  }
  EXPECT_FALSE(Exact::Of(1).Exp().Exp() == Exact::Of(2).Exp().Exp());
}

TEST(Exact, LogarithmsRememberWhatTheyAreOf) {
  for (const Exact& a : Samples()) {
    if (a.is_zero()) continue;
    EXPECT_EQ(a.Log().Exp(), a);
    EXPECT_EQ((-a.Log()).Exp(), Exact::Of(1) / a);
    EXPECT_EQ((a.Log() * Exact::Of(3)).Exp(), a.Power(3));
    EXPECT_EQ((Exact::Of(-2) * a.Log()).Exp(), a.Power(-2));
    for (const Exact& b : Samples()) {
      EXPECT_EQ((b - a.Log()).Exp(), b.Exp() / a);
      if (!b.is_zero()) {
        EXPECT_EQ((a.Log() + b.Log()).Exp(), a * b);
      }
      EXPECT_EQ((a.Log() * b).Exp(), (b * a.Log()).Exp());
    }
  }
  EXPECT_EQ(Exact().Log(), Exact::Infinity(true));
  EXPECT_EQ(Exact().Log().Exp(), Exact());
}

TEST(Exact, IsOrderedAntisymmetrically) {
  const std::vector<Exact> samples = Samples();
  for (const Exact& a : samples) {
    EXPECT_FALSE(a < a);
    EXPECT_TRUE(Exact::Infinity(true) < a && a < Exact::Infinity(false));
    for (const Exact& b : samples) {
      EXPECT_EQ(a < b, -b < -a);
      if (!(a == b)) {
        EXPECT_NE(a < b, b < a);
      }
    }
  }
  std::vector<Exact> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end()));
}

TEST(Exact, ReadsFloatsAsTheSimplestFraction) {
  const auto fraction = [](int64_t a, int64_t b) { return Exact::Of(a) / Exact::Of(b); };
  EXPECT_EQ(Exact::Of(0.1, DType::kF64), fraction(1, 10));
  EXPECT_EQ(Exact::Of(static_cast<double>(0.1f), DType::kF32), fraction(1, 10));
  EXPECT_EQ(Exact::Of(static_cast<double>(1.0f / 3), DType::kF32), fraction(1, 3));
  EXPECT_EQ(Exact::Of(-2.5, DType::kF32), fraction(-5, 2));
  EXPECT_EQ(Exact::Of(1e-8, DType::kF64), fraction(1, 100'000'000));
  EXPECT_EQ(Exact::Of(0.299560546875, DType::kBF16), Exact::Of(0.299560546875, DType::kBF16));
  EXPECT_EQ(Exact::Of(std::ldexp(1.0, 100), DType::kF64), Exact::Of(2).Power(100));
  EXPECT_EQ(Exact::Of(std::ldexp(1.0, -100), DType::kF64), Exact::Of(1) / Exact::Of(2).Power(100));
  EXPECT_TRUE(Exact::Of(std::numeric_limits<double>::quiet_NaN(), DType::kF64).is_nan());
}

TEST(Exact, SmallIntegersAreKnown) {
  for (int64_t i : {0, 1, -1, 12345, -99999}) EXPECT_EQ(Exact::Of(i).small_integer(), i);
  EXPECT_EQ((Exact::Of(1) / Exact::Of(2)).small_integer(), std::nullopt);
  EXPECT_EQ(Exact::Random(3).small_integer(), std::nullopt);
  EXPECT_EQ((Exact::Of(1) / Exact::Of(2) + Exact::Of(1) / Exact::Of(2)).small_integer(), 1);
}

TEST(RandomFunction, DependsOnNameKeyAndArguments) {
  const Exact x = Exact::Random(1), y = Exact::Random(2);
  EXPECT_EQ(RandomFunction("tanh", {x}), RandomFunction("tanh", {x}));
  EXPECT_FALSE(RandomFunction("tanh", {x}) == RandomFunction("tanh", {y}));
  EXPECT_FALSE(RandomFunction("tanh", {x}) == RandomFunction("erf", {x}));
  EXPECT_FALSE(RandomFunction("tanh", {x}) == RandomFunction("tanh", {x}, 1));
  EXPECT_FALSE(RandomFunction("pow", {x, y}) == RandomFunction("pow", {y, x}));
  EXPECT_TRUE(RandomFunction("tanh", {Exact::NaN()}).is_nan());
}

TEST(Exact, FloatsAreTheSimplestFractionsThatRoundToThem) {
  const auto of = [](float value) { return Exact::Of(static_cast<double>(value), DType::kF32); };
  EXPECT_EQ(of(1.0f / 3), Exact::Of(1) / Exact::Of(3));
  EXPECT_EQ(of(0.1f), Exact::Of(1) / Exact::Of(10));
  EXPECT_EQ(of(47.0f / 64), Exact::Of(47) / Exact::Of(64));  // and not 11/15, which rounds to it in bf16
  for (DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
    EXPECT_EQ(Exact::Of(0.30078125, dtype), Exact::Of(77) / Exact::Of(256));
}

}  // namespace
}  // namespace lockstep::verify
