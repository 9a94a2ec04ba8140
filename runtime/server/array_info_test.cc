#include "runtime/server/array_info.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ArrayInfo, TextRoundTrips) {
  const ArrayInfo info{{DType::kBF16, Shape({7, 3})}, 6, 9, true, 4};
  const absl::StatusOr<ArrayInfo> read = ArrayInfo::Parse(info.ToString());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->type, info.type);
  EXPECT_EQ(read->begin, 6);
  EXPECT_EQ(read->count, 9);
  EXPECT_TRUE(read->synchronous);
  EXPECT_EQ(read->max_staleness, 4);
  EXPECT_FALSE(ArrayInfo::Parse("1 2 3").ok());
}

TEST(ArrayInfo, APieceOfRowsHasTheirShape) {
  const TensorType type{DType::kF32, Shape({7, 3})};
  EXPECT_EQ((ArrayInfo{type, 0, 21}.piece_type()), type);
  EXPECT_EQ((ArrayInfo{type, 6, 9}.piece_type()), (TensorType{DType::kF32, Shape({3, 3})}));
  EXPECT_EQ((ArrayInfo{type, 5, 9}.piece_type()), (TensorType{DType::kF32, Shape({9})}));
}

TEST(PlaceArray, SpreadsByBytes) {
  std::vector<int64_t> bytes(2);
  const auto server = [&](int64_t elements) {
    const std::vector<PlacedPiece> pieces = PlaceArray({DType::kF32, Shape({elements})}, 1000, bytes);
    EXPECT_EQ(pieces.size(), 1u);
    return pieces[0].server;
  };
  EXPECT_EQ(server(900), 0);
  EXPECT_EQ(server(100), 1);
  EXPECT_EQ(server(100), 1);
  EXPECT_EQ(server(800), 1);
  EXPECT_EQ(server(1000), 0);  // not larger than the bound
}

TEST(PlaceArray, CutsLargeArraysEvenly) {
  std::vector<int64_t> bytes(3);
  std::vector<PlacedPiece> pieces = PlaceArray({DType::kF32, Shape({7, 10})}, 69, bytes);
  ASSERT_EQ(pieces.size(), 3u);
  int64_t end = 0;
  for (const PlacedPiece& piece : pieces) {
    EXPECT_EQ(piece.begin, end);
    EXPECT_EQ(piece.count % 10, 0) << "between rows";
    EXPECT_GE(piece.count, 20);
    end += piece.count;
  }
  EXPECT_EQ(end, 70);
  pieces = PlaceArray({DType::kF32, Shape({2, 35})}, 69, bytes);  // fewer rows than servers
  EXPECT_EQ(pieces[0].count, 23);
  EXPECT_EQ(pieces[1].count, 23);
  EXPECT_EQ(pieces[2].count, 24);
}

TEST(PlaceArray, CountsWhatIsCut) {
  std::vector<int64_t> bytes = {30, 0};
  ASSERT_EQ(PlaceArray({DType::kF32, Shape({3, 10})}, 1, bytes).size(), 2u);  // one row, and two
  EXPECT_EQ(bytes, (std::vector<int64_t>{30 + 40, 80}));
  EXPECT_EQ(PlaceArray({DType::kF32, Shape({1})}, 1, bytes)[0].server, 0);
}

}  // namespace
}  // namespace lockstep
