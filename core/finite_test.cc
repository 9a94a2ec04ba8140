#include "core/finite.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

ElementCounts CountsOf(const Tensor& tensor) {
  return CountElements(tensor.dtype(), tensor.bytes(), tensor.num_bytes());
}

class Finite : public testing::TestWithParam<DType> {};

TEST_P(Finite, CountsNaNsAndInfinities) {
  const Tensor whole = Tensor::Of<double>(Shape({6}), {1, kNaN, -2, kInfinity, -kInfinity, kNaN}).Converted(GetParam());
  const ElementCounts counts = CountsOf(whole);
  EXPECT_EQ(counts.elements, 6);
  EXPECT_EQ(counts.nans, 2);
  EXPECT_EQ(counts.infinities, 2);
  EXPECT_EQ(counts.least, -2);
  EXPECT_EQ(counts.most, 1);
  EXPECT_EQ(counts.first, 1);
  EXPECT_EQ(counts.ToString(), "2 NaN and 2 infinite of 6, the others -2.0 to 1.0");
  EXPECT_EQ(counts.ToString({0, 1}), "2 NaN and 2 infinite of 6, first at [0, 1], the others -2.0 to 1.0");
}

TEST_P(Finite, ElementsAreTold) {
  const Tensor whole = Tensor::Of<double>(Shape({5}), {1, kNaN, -2, kInfinity, -kInfinity}).Converted(GetParam());
  EXPECT_EQ(NonFiniteElements(whole.dtype(), whole.bytes(), whole.num_bytes()),
            (std::vector<bool>{false, true, false, true, true}));
}

TEST_P(Finite, OneElementOfManyIsFound) {
  for (const double odd : {kNaN, kInfinity, -kInfinity}) {
    for (size_t at = 0; at < 67; at += 11) {
      std::vector<double> values(67, 1.5);
      EXPECT_TRUE(AllFinite(DType::kF64, reinterpret_cast<const std::byte*>(values.data()), 67 * sizeof(double)));
      values[at] = odd;
      const Tensor tensor = Tensor::Of<double>(Shape({67}), values).Converted(GetParam());
      EXPECT_FALSE(AllFinite(GetParam(), tensor.bytes(), tensor.num_bytes())) << odd << " at " << at;
    }
  }
}

TEST_P(Finite, TheLargestNumberIsFinite) {
  const double largest = GetParam() == DType::kF16 ? 65504 : GetParam() == DType::kF64 ? 1e308 : 3e38;
  const Tensor tensor = Tensor::Full({GetParam(), Shape({3})}, largest);
  EXPECT_TRUE(AllFinite(GetParam(), tensor.bytes(), tensor.num_bytes()));
  EXPECT_TRUE(CountsOf(tensor).is_finite());
}

INSTANTIATE_TEST_SUITE_P(, Finite, testing::Values(DType::kF64, DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(FiniteIntegers, AreAlwaysFinite) {
  const Tensor tensor = Tensor::Of<int64_t>(Shape({2}), {-1, 0x7ff0000000000000});
  EXPECT_TRUE(AllFinite(DType::kI64, tensor.bytes(), tensor.num_bytes()));
  EXPECT_TRUE(CountsOf(tensor).is_finite());
}

}  // namespace
}  // namespace lockstep
