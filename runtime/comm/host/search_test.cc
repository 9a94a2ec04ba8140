#include "runtime/comm/host/search.h"

#include <map>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using SearchKind = Search::Reply::Kind;

// Returns the culprits that rank 0 finds if the ranks always give `replies`.
std::vector<Search::Culprit> Find(const std::vector<int>& late, const std::map<int, Search::Reply>& replies) {
  Search search(0, late, absl::Milliseconds(20), [&](int rank, bool) { return replies.at(rank); });
  for (int i = 0; i < 1000; ++i) {
    const std::optional<std::vector<Search::Culprit>> culprits = search.Poll();
    if (culprits.has_value()) return *culprits;
    absl::SleepFor(absl::Milliseconds(1));
  }
  ADD_FAILURE() << "the search does not end";
  return {};
}

TEST(Search, BlamesTheRankThatWaitsForNobody) {
  EXPECT_EQ(Find({1}, {{1, {SearchKind::kBusy}}}), (std::vector<Search::Culprit>{{1, false}}));
  EXPECT_EQ(Find({1}, {{1, {SearchKind::kWaits, 4}}, {4, {SearchKind::kWaits, 2}}, {2, {SearchKind::kBusy}}}),
            (std::vector<Search::Culprit>{{2, false}}));
}

TEST(Search, BlamesTheRankWithoutASignOfLife) {
  EXPECT_EQ(Find({1, 2}, {{1, {SearchKind::kWaits, 3}}, {2, {SearchKind::kWaits, 3}}, {3, {SearchKind::kNone}}}),
            (std::vector<Search::Culprit>{{3, true}}));
}

TEST(Search, FindsSeveral) {
  EXPECT_EQ(Find({1, 2}, {{1, {SearchKind::kBusy}}, {2, {SearchKind::kNone}}}),
            (std::vector<Search::Culprit>{{1, false}, {2, true}}));
}

TEST(Search, EndsInACircle) {
  EXPECT_EQ(Find({1}, {{1, {SearchKind::kWaits, 2}}, {2, {SearchKind::kWaits, 1}}}),
            (std::vector<Search::Culprit>{{1, false}}));
  EXPECT_EQ(Find({1}, {{1, {SearchKind::kWaits, 0}}}), (std::vector<Search::Culprit>{{1, false}}));
}

// Two ranks wait for each other, because both wait for the silent one.
TEST(Search, BlamesNoCircleBesideACulprit) {
  EXPECT_EQ(Find({2, 1}, {{2, {SearchKind::kWaits, 0}}, {1, {SearchKind::kNone}}}),
            (std::vector<Search::Culprit>{{1, true}}));
}

TEST(Search, NobodyIsLate) { EXPECT_TRUE(Find({}, {}).empty()); }

}  // namespace
}  // namespace lockstep
