// Compares the f32 functions that are computed in f64 with the C library in f64: errors in units in the last place, and
// special values. All 2^32 floats were once compared for the inverses and the hyperbolic functions, and 210 million
// pairs for pow and fmod; these comparisons are not part of the test.

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backends/codegen/loop_compiler.h"
#include "core/builder.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Floats = std::vector<float>;
constexpr double kLargestError = 0.501;  // in units in the last place; half a unit is from rounding to f32
constexpr double kWrong = std::numeric_limits<double>::infinity();

// Returns the distance of `found` from `exact`, in units in the last place of an f32 of that size; kWrong if NaN,
// infinity or sign differ.
double UlpsFrom(double exact, float found) {
  const auto rounded = static_cast<float>(exact);
  if (std::isnan(found) || std::isnan(rounded)) return std::isnan(found) && std::isnan(rounded) ? 0 : kWrong;
  if (std::signbit(found) != std::signbit(rounded)) return kWrong;
  if (std::isinf(found) || std::isinf(rounded)) return found == rounded ? 0 : kWrong;
  const int exponent = exact == 0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::ldexp(std::fabs(found - exact), 23 - exponent);
}

Floats Apply(LoopCompiler& compiler, const std::string& op, std::vector<Floats> operands) {
  const TensorType type{DType::kF32, {static_cast<int64_t>(operands[0].size())}};
  Graph body("f");
  Builder b(body);
  std::vector<Value> values;
  std::vector<void*> buffers;
  for (Floats& operand : operands) {
    values.push_back(body.AddInput("x" + std::to_string(values.size()), type).value());
    buffers.push_back(operand.data());
  }
  EXPECT_TRUE(body.AddResult("y", b.Op(op, values)).ok()) << b.status();
  Floats result(operands[0].size(), -12345);
  buffers.push_back(result.data());
  const absl::StatusOr<CompiledLoop> loop = compiler.Compile(body);
  EXPECT_TRUE(loop.ok() && loop->RunAll(buffers.data(), nullptr) == kLoopOk) << loop.status();
  return result;
}

// Returns compilers for the host, and for processors without fused multiplication or with narrow vectors.
std::vector<std::unique_ptr<LoopCompiler>> Compilers() {
  std::vector<std::unique_ptr<LoopCompiler>> compilers;
  for (const char* cpu : {"", "x86-64", "haswell"})
    compilers.push_back(LoopCompiler::Create({.cpu = cpu, .features = "", .sizes = {}}).value());
  return compilers;
}

// Bounds of domains and ranges, points where the code switches methods, halves, odd numbers, and the neighbours of all
// of them.
Floats SpecialFloats() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Floats floats = {std::numeric_limits<float>::quiet_NaN()};
  for (float x : {0.0F,     0x1p-149F, 0x1p-126F, 0x1p-24F,    0x1p-10F,    0.25F,  0.5F,   0.70710677F, 1.0F,
                  1.5F,     2.0F,      2.5F,      3.0F,        10.0F,       88.72F, 89.41F, 103.97F,     127.0F,
                  128.0F,   149.0F,    150.0F,    0x1.8p+22F,  0x1p+23F,    1e10F,  1e-10F, 0x1p+24F,    0x1p+127F,
                  3.4e+38F, kInfinity, 1e30F,     0x1.8p-148F, 0x1.8p+127F, 1e-30F, 4.5F}) {
    for (float near : {x, std::nextafter(x, kInfinity), std::nextafter(x, 0.0F)}) {
      floats.push_back(near);
      floats.push_back(-near);
    }
  }
  return floats;
}

struct Function {
  const char* op;
  double (*exact)(double);
};

TEST(FloatMath, FunctionsOfOneOperandAreNearlyRoundedRight) {
  const Function functions[] = {{"sin", std::sin},     {"cos", std::cos},     {"tan", std::tan},    {"asin", std::asin},
                                {"acos", std::acos},   {"atan", std::atan},   {"sinh", std::sinh},  {"cosh", std::cosh},
                                {"asinh", std::asinh}, {"acosh", std::acosh}, {"atanh", std::atanh}};
  // A sample of all bit patterns, and the special ones.
  Floats x = SpecialFloats();
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 16381)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (const auto& compiler : Compilers()) {
    SCOPED_TRACE(compiler->target());
    for (const auto& [op, exact] : functions) {
      const Floats y = Apply(*compiler, op, {x});
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = UlpsFrom(exact(x[i]), y[i]);
        ASSERT_LT(error, kLargestError) << op << "(" << x[i] << ") is " << y[i] << ", expected " << exact(x[i]);
        worst = std::max(worst, error);
      }
      EXPECT_GT(worst, 0.4) << op;  // the comparison must detect errors
    }
  }
}

// Pairs of special numbers, and random pairs: arbitrary bits, or numbers of moderate size.
struct Pairs {
  Floats x, y;

  Pairs() {
    const Floats special = SpecialFloats();
    for (float first : special) {
      for (float second : special) Add(first, second);
    }
    std::mt19937_64 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int i = 0; i < 200000; ++i) {
      const uint64_t bits = random();
      const auto first = std::bit_cast<float>(static_cast<uint32_t>(bits));
      const auto second = std::bit_cast<float>(static_cast<uint32_t>(bits >> 32));
      Add(first, second);
      Add(5 + 5 * uniform(random), 10 * uniform(random));
      Add(1 + uniform(random) / 1000, 100000 * uniform(random));
      Add(100 * uniform(random), std::floor(20 * uniform(random)));
      Add(first, special[bits % special.size()]);
      Add(special[bits % special.size()], second);
    }
  }

  void Add(float first, float second) {
    x.push_back(first);
    y.push_back(second);
  }
};

TEST(FloatMath, PowersAreNearlyRoundedRight) {
  const Pairs pairs;
  for (const auto& compiler : Compilers()) {
    SCOPED_TRACE(compiler->target());
    const Floats powers = Apply(*compiler, "pow", {pairs.x, pairs.y});
    for (size_t i = 0; i < powers.size(); ++i) {
      const double exact = std::pow(static_cast<double>(pairs.x[i]), static_cast<double>(pairs.y[i]));
      ASSERT_LT(UlpsFrom(exact, powers[i]), kLargestError)
          << pairs.x[i] << " to the power " << pairs.y[i] << " is " << powers[i] << ", expected " << exact;
    }
  }
}

TEST(FloatMath, RestsOfDivisionsAreExact) {
  const Pairs pairs;
  for (const auto& compiler : Compilers()) {
    SCOPED_TRACE(compiler->target());
    const Floats rests = Apply(*compiler, "fmod", {pairs.x, pairs.y});
    for (size_t i = 0; i < rests.size(); ++i) {
      // The remainder of two f32 is an f32.
      const double exact = std::fmod(static_cast<double>(pairs.x[i]), static_cast<double>(pairs.y[i]));
      ASSERT_EQ(UlpsFrom(exact, rests[i]), 0)
          << pairs.x[i] << " modulo " << pairs.y[i] << " is " << rests[i] << ", expected " << exact;
    }
  }
}

}  // namespace
}  // namespace lockstep
