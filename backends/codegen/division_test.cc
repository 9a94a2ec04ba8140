// Compares quotients by one number a row, as GPUs compute them, with the processor's division.

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backends/codegen/loop_test_support.h"
#include "core/printer.h"
#include "gtest/gtest.h"

namespace lockstep::loop_test {
namespace {

// Returns x / y for `x` of [rows, columns] and a y for each row.
std::vector<float> Quotients(const std::vector<float>& x, const std::vector<float>& y) {
  const auto rows = static_cast<int64_t>(y.size()), columns = static_cast<int64_t>(x.size()) / rows;
  const std::string row = "f32[" + std::to_string(rows) + "]",
                    shape = "[" + std::to_string(rows) + "," + std::to_string(columns) + "]";
  const Graph body = ParseGraph("graph @f(%x: f32" + shape + ", %y: " + row + ") -> (z: f32" + shape +
                                ") {\n%b = broadcast %y {dims=[0], shape=" + shape + "} : f32" + shape +
                                "\n%z = div %x, %b : f32" + shape + "\nreturn %z\n}")
                         .value();
  const std::vector<Tensor> found = RunGrid(body, {Tensor::Of<float>({rows, columns}, x), Tensor::Of<float>({rows}, y)},
                                            {.threads = 32, .blocks = 1});
  return {found[0].data<float>().begin(), found[0].data<float>().end()};
}

// Returns an x for which x / y is k / 2y units in the last place away from the middle between two floats; y if there is
// none. Significands are integers from 2^23 to 2^24; y is odd. With the middle m / 2, m odd, the quotient is
// x 2^t = m y + k for t = 24, or 25 if x < y.
int64_t HardDividend(int64_t y, int64_t k) {
  uint64_t inverse = 1;  // of y modulo 2^64, by Newton's method
  for (int i = 0; i < 6; ++i) inverse *= 2 - static_cast<uint64_t>(y) * inverse;
  for (const int t : {24, 25}) {
    int64_t m = static_cast<int64_t>(static_cast<uint64_t>(-k) * inverse & ((uint64_t{1} << t) - 1));
    if (m < int64_t{1} << 24) m += int64_t{1} << 24;
    const int64_t product = m * y + k, x = product >> t;
    const bool is_middle = m % 2 == 1 && product == x << t && (t == 24) == (x >= y);
    if (is_middle && x >= int64_t{1} << 23 && x < int64_t{1} << 24) return x;
  }
  return y;
}

TEST(DivideByOne, RoundsAsDivisionDoesNearTheMiddleBetweenTwoFloats) {
  std::mt19937_64 random(1);
  constexpr size_t kRows = 16384, kColumns = 32;
  std::vector<float> x, y;
  size_t hard = 0;
  for (size_t row = 0; row < kRows; ++row) {
    const auto significand = static_cast<int64_t>(random() % (1 << 23) | 1 << 23 | 1);
    y.push_back(std::ldexp(static_cast<float>(significand), static_cast<int>(random() % 80) - 63));
    for (size_t column = 0; column < kColumns; ++column) {
      const int64_t dividend = HardDividend(significand, 2 * static_cast<int64_t>(column) - 31);
      hard += dividend != significand ? 1 : 0;
      x.push_back(std::ldexp(static_cast<float>(dividend), static_cast<int>(random() % 80) - 63));
    }
  }
  EXPECT_GT(hard, kRows * kColumns / 4);
  const std::vector<float> found = Quotients(x, y);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(found[i], x[i] / y[i / kColumns]) << x[i] << " / " << y[i / kColumns];
}

// Zeros, infinities and NaN are those of division. Of other quotients only those below 2^-100, and those near the
// largest float, may be another float, and then it is adjacent.
TEST(DivideByOne, IsDivisionOrAdjacentForAllFloats) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::mt19937_64 random(2);
  const auto any = [&] { return std::bit_cast<float>(static_cast<uint32_t>(random())); };
  std::vector<float> special;
  for (const float each : {0.0F,
                           0x1p-149F,
                           0x3p-149F,
                           0x1.fffffcp-127F,
                           0x1p-126F,
                           0x1.8p-125F,
                           0x1p-102F,
                           0x1p-24F,
                           0.5F,
                           0x1.fffffep-2F,
                           0x1.fffffep-1F,
                           1.0F,
                           0x1.000002p0F,
                           3.0F,
                           0x1p+24F,
                           0x1p+104F,
                           0x1.fffffep+124F,
                           0x1p+125F,
                           0x1.8p+126F,
                           0x1.fffffep+127F,
                           kInfinity,
                           std::numeric_limits<float>::quiet_NaN()}) {
    special.push_back(each);
    special.push_back(-each);
  }
  constexpr size_t kColumns = 512;
  std::vector<float> x, y = special;
  while (y.size() < 1024) y.push_back(any());
  for (const float divisor : y) {
    std::vector<float> row = special;
    while (row.size() < kColumns / 2) row.push_back(any());
    while (row.size() < kColumns) row.push_back(divisor * std::bit_cast<float>(static_cast<uint32_t>(random()) >> 7));
    x.insert(x.end(), row.begin(), row.end());
  }
  const std::vector<float> found = Quotients(x, y);
  size_t adjacent = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float divisor = y[i / kColumns], expected = x[i] / divisor;
    const float size = std::fabs(expected);
    SCOPED_TRACE(testing::Message() << x[i] << " / " << divisor);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(found[i])) << found[i];
    } else if (size == 0 || std::isinf(expected) || (size >= 0x1p-100F && size < 0x1p+127F)) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected)) << found[i];
    } else {
      ASSERT_EQ(std::signbit(found[i]), std::signbit(expected));
      ASSERT_TRUE(found[i] == expected || found[i] == std::nextafter(expected, kInfinity) ||
                  found[i] == std::nextafter(expected, -kInfinity))
          << found[i] << ", expected " << expected;
      adjacent += found[i] != expected ? 1 : 0;
    }
  }
  EXPECT_GT(adjacent, 0U);  // the comparison must meet them
}

}  // namespace
}  // namespace lockstep::loop_test
