#include "runtime/hash.h"

#include <cstring>

namespace lockstep {
namespace {

// Independent chains in vectors, so that the additions of one chain do not wait for those of another. Compilers split
// them into the vectors of the processor.
using Lanes [[gnu::vector_size(64)]] = uint64_t;
constexpr size_t kVectors = 4, kBlock = kVectors * sizeof(Lanes);

// For a given word, this is a bijection of the lane; for a given lane, a bijection of the word. It uses no
// multiplication, because SSE2 and AVX2 have none of 64 bits.
void AbsorbBlock(Lanes (&lanes)[kVectors], const std::byte* block) {
  Lanes words[kVectors];
  std::memcpy(words, block, kBlock);
  for (size_t i = 0; i < kVectors; ++i) {
    Lanes lane = lanes[i] ^ words[i];
    lane += lane << 21;
    lanes[i] = lane ^ lane >> 29;
  }
}

}  // namespace

uint64_t HashCombine(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 0x9e3779b97f4a7c15u;  // odd: a bijection
  return hash ^ hash >> 32;
}

uint64_t HashBytes(const void* data, size_t bytes, uint64_t seed) {
  const auto* at = static_cast<const std::byte*>(data);
  const uint64_t start = HashCombine(seed + 1, bytes);
  uint64_t numbers[kBlock / sizeof(uint64_t)];
  for (uint64_t i = 0; uint64_t& number : numbers) number = HashCombine(start, i++);
  Lanes lanes[kVectors];
  std::memcpy(lanes, numbers, kBlock);
  size_t left = bytes;
  for (; left >= kBlock; left -= kBlock, at += kBlock) AbsorbBlock(lanes, at);
  if (left > 0) {
    std::byte last[kBlock] = {};  // `start` contains the size, so zeros at the end count
    std::memcpy(last, at, left);
    AbsorbBlock(lanes, last);
  }
  std::memcpy(numbers, lanes, kBlock);
  uint64_t hash = start;
  for (const uint64_t number : numbers) hash = HashCombine(hash, number);
  return hash;
}

}  // namespace lockstep
