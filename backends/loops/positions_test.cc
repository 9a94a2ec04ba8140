#include "backends/loops/positions.h"

#include <random>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Returns the index after `at` steps in row-major order through `extents`.
Ints IndexAt(int64_t at, const Ints& extents) {
  Ints index(extents.size());
  for (size_t k = extents.size(); k-- > 0; at /= extents[k]) index[k] = at % extents[k];
  return index;
}

int64_t Count(const Ints& extents) {
  int64_t count = 1;
  for (int64_t extent : extents) count *= extent;
  return count;
}

// Returns true if, at every index of the loop, `indices` are those of the element at `position`.
bool AreIndicesOf(const std::vector<Affine>& indices, const Affine& position, const Shape& shape, const Ints& extents) {
  const Ints strides = StridesOf(shape);
  for (int64_t at = 0; at < Count(extents); ++at) {
    const Ints loop = IndexAt(at, extents);
    int64_t sum = 0;
    for (size_t j = 0; j < indices.size(); ++j) {
      const int64_t index = indices[j].At(loop);
      if (index < 0 || index >= shape.dims()[j]) return false;
      sum += index * strides[j];
    }
    if (sum != position.At(loop)) return false;
  }
  return true;
}

TEST(IndicesOf, EveryPositionThatIsTakenApartIsTheSum) {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  int taken_apart = 0, downwards = 0, splits = 0;
  for (int tries = 0; tries < 20000; ++tries) {
    Ints dims, extents;
    for (int64_t i = below(4); i >= 0; --i) dims.push_back(1 + below(6));
    for (int64_t i = below(3); i >= 0; --i) extents.push_back(1 + below(6));
    const Shape shape(dims);
    const Ints strides = StridesOf(shape);
    Affine position = Affine::Zero(extents.size());
    int64_t least = 0, most = 0;
    bool has_negative = false;
    for (size_t k = 0; k < extents.size(); ++k) {
      if (extents[k] == 1) continue;
      int64_t stride = strides[static_cast<size_t>(below(static_cast<int64_t>(strides.size())))] * below(3);
      if (below(2) == 0) stride = -stride;
      position.strides[k] = stride;
      (stride < 0 ? least : most) += stride * (extents[k] - 1);
      has_negative = has_negative || stride < 0;
    }
    const int64_t room = shape.num_elements() - (most - least);
    if (room <= 0) continue;  // not inside the tensor
    position.constant = below(room) - least;
    const auto result = IndicesOf(position, shape, extents);
    if (const auto* indices = std::get_if<std::vector<Affine>>(&result)) {
      ++taken_apart;
      downwards += has_negative;
      EXPECT_TRUE(AreIndicesOf(*indices, position, shape, extents))
          << shape << " loop " << Shape(extents) << " constant " << position.constant << " strides "
          << Shape(position.strides);
    } else if (const auto* split = std::get_if<SplitDim>(&result)) {
      ++splits;
      EXPECT_GT(split->inner, 1);
      EXPECT_EQ(extents[split->dim] % split->inner, 0);
    }
  }
  EXPECT_GT(taken_apart, 1000);
  EXPECT_GT(downwards, 300);
  EXPECT_GT(splits, 10);
}

TEST(IndicesOf, DownwardsThroughSeveralDimensions) {
  const auto whole = IndicesOf({11, {-1}}, Shape({3, 4}), {12});
  ASSERT_TRUE(std::holds_alternative<SplitDim>(whole));
  EXPECT_EQ(std::get<SplitDim>(whole).inner, 4);
  const auto split = IndicesOf({11, {-4, -1}}, Shape({3, 4}), {3, 4});
  ASSERT_TRUE(std::holds_alternative<std::vector<Affine>>(split));
  EXPECT_EQ(std::get<std::vector<Affine>>(split), (std::vector<Affine>{{2, {-1, 0}}, {3, {0, -1}}}));
}

}  // namespace
}  // namespace lockstep
