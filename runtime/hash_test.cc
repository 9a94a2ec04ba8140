// The hash: every byte, its position and the size count, at every alignment of the bytes.

#include "runtime/hash.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

std::vector<unsigned char> Bytes(size_t size) {
  std::vector<unsigned char> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(i * 37 % 251);
  return bytes;
}

TEST(Hash, EveryBitCounts) {
  for (size_t size : {1, 7, 8, 255, 256, 257, 700}) {
    std::vector<unsigned char> bytes = Bytes(size);
    std::set<uint64_t> hashes = {HashBytes(bytes.data(), size)};
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
      hashes.insert(HashBytes(bytes.data(), size));
      bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    }
    EXPECT_EQ(hashes.size(), 8 * size + 1);
  }
}

TEST(Hash, SizeAndOrderCount) {
  const std::vector<unsigned char> zeros(600, 0);
  std::set<uint64_t> hashes;
  for (size_t size = 0; size <= zeros.size(); ++size) hashes.insert(HashBytes(zeros.data(), size));
  EXPECT_EQ(hashes.size(), zeros.size() + 1);
  std::vector<unsigned char> bytes = Bytes(1024);
  const uint64_t before = HashBytes(bytes.data(), bytes.size());
  for (size_t block : {8, 64, 256}) {  // the sizes of a lane, a vector, all lanes
    std::vector<unsigned char> swapped = bytes;
    std::swap_ranges(swapped.begin(), swapped.begin() + block, swapped.begin() + 2 * block);
    EXPECT_NE(HashBytes(swapped.data(), swapped.size()), before) << block;
  }
  EXPECT_NE(HashBytes(bytes.data(), bytes.size(), 1), before);
}

TEST(Hash, WhereTheBytesLieDoesNot) {
  const std::vector<unsigned char> bytes = Bytes(1000);
  std::vector<unsigned char> moved(1100);
  for (size_t offset : {1, 3, 8, 33}) {
    std::memcpy(moved.data() + offset, bytes.data(), bytes.size());
    EXPECT_EQ(HashBytes(moved.data() + offset, bytes.size()), HashBytes(bytes.data(), bytes.size()));
  }
}

TEST(Hash, CombineDependsOnTheOrder) {
  EXPECT_NE(HashCombine(HashCombine(1, 2), 3), HashCombine(HashCombine(1, 3), 2));
  EXPECT_NE(HashText("ab"), HashText("ba"));
}

}  // namespace
}  // namespace lockstep
