// Philox against the known answers of Random123, the authors' own distribution (kat_vectors, philox4x32 10).

#include "core/philox.h"

#include <set>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(Philox::Words({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox::Words({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox::Words({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Every bit of each of the four counters matters, as far as the Philox counter has room for it.
TEST(RandomWords, DependOnAllOfWhatTheyCount) {
  std::set<Words> seen = {RandomWords(0, 0, 0, 0)};
  size_t expected = 1;
  for (int bit = 0; bit < 64; ++bit) {
    const auto one = static_cast<int64_t>(uint64_t{1} << bit);
    seen.insert(RandomWords(one, 0, 0, 0));
    seen.insert(RandomWords(0, 0, one, 0));
    expected += 2;
    if (bit < 40) seen.insert(RandomWords(0, one, 0, 0)), ++expected;
    if (bit < 24) seen.insert(RandomWords(0, 0, 0, one)), ++expected;
  }
  EXPECT_EQ(seen.size(), expected);
  EXPECT_EQ(RandomWords(7, int64_t{1} << 40, 3, 5), RandomWords(7, 0, 3, 5));
}

static_assert(Philox::Words({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5, "at compile time too");

}  // namespace
}  // namespace lockstep
