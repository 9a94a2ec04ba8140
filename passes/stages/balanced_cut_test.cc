// Compares BalancedCut with a search of all cuts.

#include "passes/stages/balanced_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

namespace lockstep::passes {
namespace {

double CostOf(const std::vector<size_t>& begins, const std::vector<double>& costs, const std::vector<double>& cuts) {
  double most = 0;
  for (size_t part = 0; part < begins.size(); ++part) {
    const size_t end = part + 1 < begins.size() ? begins[part + 1] : costs.size();
    double cost = (begins[part] > 0 ? cuts[begins[part]] : 0) + (end < costs.size() ? cuts[end] : 0);
    for (size_t i = begins[part]; i < end; ++i) cost += costs[i];
    most = std::max(most, cost);
  }
  return most;
}

double Cheapest(std::vector<size_t>& begins, size_t parts, const std::vector<double>& costs,
                const std::vector<double>& cuts) {
  if (begins.size() == parts) return CostOf(begins, costs, cuts);
  double best = std::numeric_limits<double>::infinity();
  for (size_t next = begins.back() + 1; next + (parts - begins.size()) <= costs.size(); ++next) {
    begins.push_back(next);
    best = std::min(best, Cheapest(begins, parts, costs, cuts));
    begins.pop_back();
  }
  return best;
}

TEST(BalancedCut, IsAsGoodAsTheBestOfAll) {
  std::mt19937 random(1);
  int compared = 0;
  for (size_t entries = 1; entries <= 9; ++entries) {
    for (size_t parts = 1; parts <= entries; ++parts) {
      for (int trial = 0; trial < 20; ++trial, ++compared) {
        std::vector<double> costs(entries), cuts(entries + 1);
        for (double& cost : costs) cost = static_cast<double>(random() % 5);  // ties and zeros are frequent
        for (double& cut : cuts) cut = static_cast<double>(random() % 4);
        const std::vector<size_t> begins = BalancedCut(costs, cuts, static_cast<int64_t>(parts));
        ASSERT_EQ(begins.size(), parts);
        ASSERT_EQ(begins[0], 0U);
        ASSERT_TRUE(std::adjacent_find(begins.begin(), begins.end(), std::greater_equal<>()) == begins.end());
        ASSERT_LT(begins.back(), entries);
        std::vector<size_t> first = {0};
        EXPECT_EQ(CostOf(begins, costs, cuts), Cheapest(first, parts, costs, cuts)) << entries << " in " << parts;
      }
    }
  }
  EXPECT_EQ(compared, 900);
}

TEST(BalancedCut, PrefersCheapCuts) {
  // The most expensive part is the last entry, wherever the cut is.
  EXPECT_EQ(BalancedCut({1, 1, 1, 9}, {0, 3, 1, 1, 0}, 3), (std::vector<size_t>{0, 2, 3}));
}

TEST(BalancedCut, NeedsNoCutOfOnePart) { EXPECT_EQ(BalancedCut({1, 2}, {7, 7, 7}, 1), (std::vector<size_t>{0})); }

}  // namespace
}  // namespace lockstep::passes
