#include "runtime/comm/collective/reduce.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

template <typename T>
std::vector<T> Reduced(ReduceKind kind, std::vector<std::vector<T>> inputs, int world_size) {
  std::vector<T> result(inputs[0].size());
  std::vector<const std::byte*> in;
  for (auto& input : inputs) in.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::byte* out[] = {reinterpret_cast<std::byte*>(result.data())};
  Reduce({.kind = kind,
          .dtype = DTypeOf<T>(),
          .count = static_cast<int64_t>(result.size()),
          .world_size = world_size,
          .inputs = in,
          .outputs = out});
  return result;
}

// The vectorised conversions equal those of core/dtype.h: a maximum of one rank converts to float and back.
template <typename Half>
void EveryBitPatternSurvives() {
  std::vector<Half> all(65536);
  for (uint32_t i = 0; i < 65536; ++i) all[i].bits = static_cast<uint16_t>(i);
  const std::vector<Half> result = Reduced<Half>(ReduceKind::kMax, {all}, 1);
  for (uint32_t i = 0; i < 65536; ++i) EXPECT_EQ(result[i].bits, Half(static_cast<float>(all[i])).bits) << i;
}

TEST(Reduce, EveryFloat16) { EveryBitPatternSurvives<Float16>(); }
TEST(Reduce, EveryBFloat16) { EveryBitPatternSurvives<BFloat16>(); }

// Sums of all pairs of special values round as in core/dtype.h, including subnormals, infinities and ties.
template <typename Half>
void SumsRoundLikeCore() {
  std::vector<Half> a, b;
  for (uint32_t i = 0; i < 65536; i += 37) {
    for (uint32_t j = 0; j < 65536; j += 1009) {
      a.emplace_back().bits = static_cast<uint16_t>(i);
      b.emplace_back().bits = static_cast<uint16_t>(j);
    }
  }
  const std::vector<Half> sums = Reduced<Half>(ReduceKind::kSum, {a, b}, 2);
  for (size_t i = 0; i < a.size(); ++i) {
    const float sum = static_cast<float>(a[i]) + static_cast<float>(b[i]);
    const uint16_t found = sums[i].bits, expected = Half(sum).bits;
    ASSERT_TRUE(found == expected || (std::isnan(sum) && std::isnan(static_cast<float>(sums[i]))))
        << a[i].bits << " + " << b[i].bits;
  }
}

TEST(Reduce, SumsOfFloat16) { SumsRoundLikeCore<Float16>(); }
TEST(Reduce, SumsOfBFloat16) { SumsRoundLikeCore<BFloat16>(); }

TEST(Reduce, NanIsMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceKind kind : {ReduceKind::kMin, ReduceKind::kMax}) {
    EXPECT_TRUE(std::isnan(Reduced<float>(kind, {{nan}, {1}, {2}}, 3)[0]));
    EXPECT_TRUE(std::isnan(Reduced<float>(kind, {{1}, {nan}, {2}}, 3)[0]));
    EXPECT_TRUE(std::isnan(Reduced<float>(kind, {{1}, {2}, {nan}}, 3)[0]));
  }
}

TEST(Reduce, IntegersWrapAndMeansTruncate) {
  EXPECT_EQ(Reduced<int8_t>(ReduceKind::kSum, {{100}, {100}}, 2)[0], -56);
  EXPECT_EQ(Reduced<int8_t>(ReduceKind::kMean, {{100}, {101}}, 2)[0], 100);
  EXPECT_EQ(Reduced<int32_t>(ReduceKind::kMean, {{-3}, {-4}}, 2)[0], -3);
  EXPECT_EQ(Reduced<uint16_t>(ReduceKind::kProd, {{65535}, {65535}}, 2)[0], 1);
  EXPECT_EQ(Reduced<int64_t>(ReduceKind::kSum, {{std::numeric_limits<int64_t>::max()}, {1}}, 2)[0],
            std::numeric_limits<int64_t>::min());
}

// Splitting the ranks at host boundaries changes nothing.
TEST(Reduce, PartialSumsContinueInRankOrder) {
  constexpr int64_t kCount = 5000;
  std::vector<std::vector<Float16>> x(3, std::vector<Float16>(kCount));
  for (int r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < kCount; ++i)
      x[r][i] = Float16(0.1f * static_cast<float>(r + 1) + 0.37f * static_cast<float>(i % 100));
  }
  const std::vector<Float16> whole = Reduced<Float16>(ReduceKind::kMean, x, 3);
  ASSERT_EQ(AccumulatorSize(DType::kF16, ReduceKind::kMean), sizeof(float));
  std::vector<std::byte> partial(kCount * sizeof(float));
  const std::byte* below[] = {reinterpret_cast<std::byte*>(x[0].data()), reinterpret_cast<std::byte*>(x[1].data())};
  const std::byte* above[] = {reinterpret_cast<std::byte*>(x[2].data())};
  std::vector<Float16> result(kCount);
  std::byte* out[] = {reinterpret_cast<std::byte*>(result.data())};
  Reduce({.kind = ReduceKind::kMean,
          .dtype = DType::kF16,
          .count = kCount,
          .world_size = 3,
          .inputs = below,
          .outputs = {},
          .partial = partial.data()});
  Reduce({.kind = ReduceKind::kMean,
          .dtype = DType::kF16,
          .count = kCount,
          .world_size = 3,
          .inputs = above,
          .outputs = out,
          .prefix = partial.data()});
  EXPECT_EQ(std::memcmp(result.data(), whole.data(), kCount * sizeof(Float16)), 0);
}

}  // namespace
}  // namespace lockstep
