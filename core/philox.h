// A counter-based random number generator: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). A word depends on a key and a counter only, so that any rank can compute the words of any
// element in any order without state. This is the reference meaning of the op random_bits;
// backends/codegen/emit_random.cc generates the same for loops. Pure functions; any thread.

#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

struct Philox {
  static constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  static constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;  // added to the key in each round
  static constexpr int kRounds = 10;

  // The four words for a counter.
  static constexpr std::array<uint32_t, 4> Words(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t first = uint64_t{kMultiplier0} * counter[0], second = uint64_t{kMultiplier1} * counter[2];
      counter = {High(second) ^ counter[1] ^ key[0], Low(second), High(first) ^ counter[3] ^ key[1], Low(first)};
      key = {key[0] + kWeyl0, key[1] + kWeyl1};
    }
    return counter;
  }

  static constexpr uint32_t Low(uint64_t x) { return static_cast<uint32_t>(x); }
  static constexpr uint32_t High(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
};

// The counter of the op random_bits. The key is the seed. The counter has 64 bits for the element's index, 40 for the
// step, and 24 for the stream, which distinguishes the draws of a program. A program's draws repeat after 2^40 steps.
inline constexpr int64_t kMaxRandomStreams = int64_t{1} << 24;

constexpr std::array<uint32_t, 4> RandomWords(int64_t seed, int64_t step, int64_t index, int64_t stream) {
  const auto key = static_cast<uint64_t>(seed), run = static_cast<uint64_t>(step), at = static_cast<uint64_t>(index);
  const uint32_t last = static_cast<uint32_t>(stream) | Philox::High(run) << 24;
  return Philox::Words({Philox::Low(at), Philox::High(at), Philox::Low(run), last},
                       {Philox::Low(key), Philox::High(key)});
}

}  // namespace lockstep
