#include "core/local_part.h"

#include <cstring>
#include <numeric>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

const Mesh kGrid({{"data", 2}, {"model", 3}});

Tensor Counting(Shape shape, DType dtype = DType::kI32) {
  Tensor tensor({DType::kI32, std::move(shape)});
  std::iota(tensor.mutable_data<int32_t>().begin(), tensor.mutable_data<int32_t>().end(), 0);
  return tensor.Converted(dtype);
}

// Puts every rank's part into a tensor whose bits are all ones.
Tensor PutTogether(const Tensor& whole, const PlacementMap& placements, const Mesh& mesh) {
  Tensor result(whole.type());
  std::memset(result.mutable_bytes(), 0xff, result.num_bytes());
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    const Tensor part = LocalPart(whole, placements, mesh, rank);
    PutLocalPart(part.bytes(), placements, mesh, rank, whole.type(), result.mutable_bytes());
  }
  return result;
}

TEST(LocalPart, IsCutAlongTheDimensionsThatAreSplit) {
  const Tensor whole = Counting({4, 6});
  EXPECT_EQ(LocalPart(whole, {{"data", Placement::Split(0)}}, kGrid, 4),
            Tensor::Of<int32_t>({2, 6}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(LocalPart(whole, {{"model", Placement::Split(1)}}, kGrid, 4),
            Tensor::Of<int32_t>({4, 2}, {2, 3, 8, 9, 14, 15, 20, 21}));
  const PlacementMap both = {{"data", Placement::Split(0)}, {"model", Placement::Split(1)}};
  EXPECT_EQ(LocalPart(whole, both, kGrid, 5), Tensor::Of<int32_t>({2, 2}, {16, 17, 22, 23}));
  // A dimension that both axes split is split first by the mesh's first axis.
  const PlacementMap twice = {{"data", Placement::Split(1)}, {"model", Placement::Split(1)}};
  EXPECT_EQ(LocalPart(whole, twice, kGrid, 4), Tensor::Of<int32_t>({4, 1}, {4, 10, 16, 22}));
  EXPECT_EQ(LocalPart(whole, {}, kGrid, 5), whole);
}

TEST(LocalPart, PartsGiveTheWhole) {
  const PlacementMap maps[] = {{},
                               {{"data", Placement::Split(0)}},
                               {{"model", Placement::Split(1)}},
                               {{"model", Placement::Split(2)}},
                               {{"data", Placement::Split(2)}, {"model", Placement::Split(0)}},
                               {{"data", Placement::Split(1)}, {"model", Placement::Split(1)}}};
  const Mesh meshes[] = {kGrid, Mesh({{"model", 3}, {"data", 2}}), Mesh({{"data", 1}, {"model", 1}})};
  for (const Mesh& mesh : meshes) {
    for (const PlacementMap& placements : maps) {
      for (DType dtype : {DType::kI32, DType::kBool, DType::kF64, DType::kBF16}) {
        const Tensor whole = Counting({6, 6, 12}, dtype);
        EXPECT_EQ(PutTogether(whole, placements, mesh), whole) << mesh.ToString() << " " << dtype;
      }
    }
  }
  EXPECT_EQ(PutTogether(Counting({}), {}, kGrid), Counting({}));
  const Tensor empty = Counting({4, 0, 3});
  EXPECT_EQ(PutTogether(empty, {{"data", Placement::Split(0)}}, kGrid), empty);
}

TEST(LocalPart, PuttingLeavesTheOtherElements) {
  Tensor whole = Counting({2, 6});
  const Tensor part = Tensor::Of<int32_t>({2, 2}, {-1, -2, -3, -4});
  PutLocalPart(part.bytes(), {{"model", Placement::Split(1)}}, kGrid, 1, whole.type(), whole.mutable_bytes());
  EXPECT_EQ(whole, Tensor::Of<int32_t>({2, 6}, {0, 1, -1, -2, 4, 5, 6, 7, -3, -4, 10, 11}));
}

}  // namespace
}  // namespace lockstep
