#include "passes/distribute/bucket_plan.h"

#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::passes {
namespace {

using testing::ElementsAre;

constexpr int64_t kLatency = 10;
int64_t OneAByte(int64_t bytes) { return kLatency + bytes; }

// Returns all partitions of n gradients into ranges. Bit i is set if a bucket ends after gradient i.
std::vector<std::vector<size_t>> AllPartitions(size_t n) {
  std::vector<std::vector<size_t>> partitions;
  for (uint32_t bits = 0; bits < (1u << (n - 1)); ++bits) {
    std::vector<size_t> ends;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (bits >> i & 1) ends.push_back(i + 1);
    }
    ends.push_back(n);
    partitions.push_back(std::move(ends));
  }
  return partitions;
}

struct Best {
  int64_t end;
  size_t buckets;
};

// Finds the best plan by trying all partitions.
Best BestOfAll(const std::vector<GradientTimes>& gradients, int64_t kernels_end, CollectiveCost cost) {
  Best best{INT64_MAX, 0};
  for (const std::vector<size_t>& ends : AllPartitions(gradients.size())) {
    const int64_t end = EndOf(gradients, kernels_end, cost, ends);
    if (end < best.end || (end == best.end && ends.size() < best.buckets)) best = {end, ends.size()};
  }
  return best;
}

std::string Text(const std::vector<GradientTimes>& gradients, int64_t kernels_end) {
  std::string text = "kernels end " + std::to_string(kernels_end);
  for (const GradientTimes& each : gradients) {
    text += "; ready " + std::to_string(each.ready) + " bytes " + std::to_string(each.bytes) + " update " +
            std::to_string(each.update);
  }
  return text;
}

class RandomSteps {
 public:
  int64_t Below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_); }

  std::vector<GradientTimes> Gradients(size_t n) {
    const int64_t pace = 1 + Below(40), most = 1 + Below(60), update = 1 + Below(30);
    std::vector<GradientTimes> gradients(n);
    int64_t now = 0;
    for (GradientTimes& each : gradients) each = {now += Below(pace), Below(most), Below(update)};
    return gradients;
  }

 private:
  std::mt19937_64 random_{1};
};

// Compares each case with all of its partitions. The counts show that plans of all sizes occurred.
TEST(BucketPlanTest, NoPartitionEndsEarlierNorHasFewerBuckets) {
  RandomSteps random;
  std::vector<int> cases_with_buckets(10, 0);
  int cases = 0;
  for (size_t n = 1; n < cases_with_buckets.size(); ++n) {
    for (int round = 0; round < 300; ++round, ++cases) {
      const std::vector<GradientTimes> gradients = random.Gradients(n);
      const int64_t kernels_end = gradients.back().ready + random.Below(3) * random.Below(100);
      const int64_t latency = random.Below(30), weight = random.Below(4);
      // Any function is allowed. In every third round a bucket of more bytes may be cheaper.
      std::vector<int64_t> prices(700);
      for (int64_t& price : prices) price = random.Below(80);
      const auto cost = [&](int64_t bytes) {
        return round % 3 == 0 ? prices.at(static_cast<size_t>(bytes)) : latency + weight * bytes;
      };
      const Best best = BestOfAll(gradients, kernels_end, cost);
      const BucketPlan plan = PlanBuckets(gradients, kernels_end, cost);
      ASSERT_EQ(plan.end, best.end) << Text(gradients, kernels_end);
      ASSERT_EQ(plan.ends.size(), best.buckets) << Text(gradients, kernels_end);
      ASSERT_EQ(EndOf(gradients, kernels_end, cost, plan.ends), plan.end) << Text(gradients, kernels_end);
      ++cases_with_buckets[plan.ends.size()];
    }
  }
  EXPECT_EQ(cases, 2700);
  for (size_t buckets = 1; buckets < 6; ++buckets) EXPECT_GT(cases_with_buckets[buckets], 10) << buckets << " buckets";
}

TEST(BucketPlanTest, NoGradients) { EXPECT_EQ(PlanBuckets({}, 7, OneAByte), (BucketPlan{{}, 7})); }

TEST(BucketPlanTest, WhatIsReadyAtOnceTravelsTogether) {
  const std::vector<GradientTimes> gradients(4, {.ready = 5, .bytes = 100});
  EXPECT_EQ(PlanBuckets(gradients, 5, OneAByte), (BucketPlan{{4}, 5 + kLatency + 400}));
}

TEST(BucketPlanTest, WhatComesLateTravelsAlone) {
  const std::vector<GradientTimes> gradients = {{0, 50}, {10, 50}, {20, 50}, {500, 1}};
  EXPECT_EQ(PlanBuckets(gradients, 500, OneAByte), (BucketPlan{{3, 4}, 500 + kLatency + 1}));
}

// The network is the bottleneck: it should not idle before the first bucket, nor pay the latency too often.
TEST(BucketPlanTest, TheFirstBucketIsSmallWhereTheNetworkIsSlow) {
  const std::vector<GradientTimes> gradients = {{10, 100}, {20, 100}, {30, 100}, {40, 100}, {50, 100}};
  const BucketPlan plan = PlanBuckets(gradients, 50, OneAByte);
  EXPECT_THAT(plan.ends, ElementsAre(1, 5));
  EXPECT_EQ(plan.end, 10 + 2 * kLatency + 500);
}

// Long updates hide the transfers after them, so the gradient with the long update travels first.
TEST(BucketPlanTest, UpdatesRunWhileTheNextBucketTravels) {
  std::vector<GradientTimes> gradients = {{0, 100, 0}, {0, 100, 0}};
  EXPECT_THAT(PlanBuckets(gradients, 0, OneAByte).ends, ElementsAre(2));
  gradients[0].update = 200;
  EXPECT_EQ(PlanBuckets(gradients, 0, OneAByte), (BucketPlan{{1, 2}, kLatency + 100 + 200}));
}

TEST(BucketPlanTest, OfEqualPlansTheOneWithTheSmallestLastBucket) {
  const auto at_most_two = [](int64_t bytes) { return bytes > 2 ? 5000 : kLatency; };
  const std::vector<GradientTimes> alike(3, {.ready = 1000, .bytes = 1});
  const std::vector<size_t> other = {1, 3};
  EXPECT_EQ(PlanBuckets(alike, 1000, at_most_two), (BucketPlan{{2, 3}, EndOf(alike, 1000, at_most_two, other)}));
}

TEST(BucketPlanTest, ThousandsOfGradientsTakeNoTime) {
  std::vector<GradientTimes> gradients;
  for (int64_t i = 0; i < 1500; ++i) gradients.push_back({i * 50'000, 40'000 + i * 977 % 70'001, 3'000});
  const auto cost = [](int64_t bytes) { return 60'000 + bytes; };
  const BucketPlan plan = PlanBuckets(gradients, 75'000'000, cost);
  EXPECT_LT(plan.end, EndOf(gradients, 75'000'000, cost, std::vector<size_t>{1500}));
}

TEST(CostTableTest, LinesBetweenPoints) {
  const CostTable table({{100, 50}, {200, 60}, {1000, 860}});
  EXPECT_EQ(table.At(0), 50);
  EXPECT_EQ(table.At(100), 50);
  EXPECT_EQ(table.At(150), 55);
  EXPECT_EQ(table.At(200), 60);
  EXPECT_EQ(table.At(600), 460);
  EXPECT_EQ(table.At(2000), 1860);
  EXPECT_EQ(table.At(int64_t{1} << 40), (int64_t{1} << 40) - 140);
}

TEST(CostTableTest, NeverBelowZero) {
  EXPECT_EQ(CostTable({{10, 7}}).At(1000), 7);
  EXPECT_EQ(CostTable({{10, 7}, {20, 1}}).At(1000), 0);
}

}  // namespace
}  // namespace lockstep::passes
