// The arena: requests that live at the same time do not overlap, and memory is reused.

#include "backends/planning/buffer_plan.h"

#include <random>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

uint64_t LowerBound(const std::vector<ArenaRequest>& requests) {
  uint64_t bound = 0;
  for (const ArenaRequest& at : requests) {
    uint64_t live = 0;
    for (const ArenaRequest& other : requests) {
      if (other.begin <= at.begin && at.begin <= other.end) live += AlignUp(other.bytes);
    }
    bound = std::max(bound, live);
  }
  return bound;
}

TEST(PlanArena, NeverOverlapsWhatLivesTogether) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<ArenaRequest> requests(random() % 40 + 1);
    for (ArenaRequest& request : requests) {
      request.begin = static_cast<int>(random() % 30);
      request.end = request.begin + static_cast<int>(random() % 10);
      request.bytes = random() % 5000 + 1;
    }
    uint64_t total = 0;
    const std::vector<uint64_t> offsets = PlanArena(requests, total);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(offsets[i] % kBufferAlignment, 0u);
      EXPECT_LE(offsets[i] + requests[i].bytes, total);
      for (size_t j = 0; j < i; ++j) {
        const bool together = requests[i].begin <= requests[j].end && requests[j].begin <= requests[i].end;
        const BufferSlice a{0, offsets[i], requests[i].bytes}, b{0, offsets[j], requests[j].bytes};
        EXPECT_FALSE(together && a.Overlaps(b)) << i << " and " << j;
      }
    }
    EXPECT_LE(total, LowerBound(requests) * 2);
  }
}

TEST(PlanArena, AChainNeedsTwoPlaces) {
  std::vector<ArenaRequest> chain;
  for (int i = 0; i < 10; ++i) chain.push_back({1000, i, i + 1});
  uint64_t total = 0;
  PlanArena(chain, total);
  EXPECT_EQ(total, 2048u);
}

}  // namespace
}  // namespace lockstep
