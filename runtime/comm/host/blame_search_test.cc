#include "runtime/comm/host/blame_search.h"

#include <map>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using SearchKind = BlameSearch::Reply::Kind;

// Returns the culprits that rank 0 finds if the ranks always give `replies`.
std::vector<BlameSearch::Culprit> Find(const std::vector<int>& late, const std::map<int, BlameSearch::Reply>& replies) {
  BlameSearch search(0, late, absl::Milliseconds(20), [&](int rank, bool) { return replies.at(rank); });
  for (int i = 0; i < 1000; ++i) {
    const std::optional<std::vector<BlameSearch::Culprit>> culprits = search.Poll();
    if (culprits.has_value()) return *culprits;
    absl::SleepFor(absl::Milliseconds(1));
  }
  ADD_FAILURE() << "the search does not end";
  return {};
}

TEST(BlameSearch, BlamesTheRankThatWaitsForNobody) {
  EXPECT_EQ(Find({1}, {{1, {SearchKind::kBusy}}}), (std::vector<BlameSearch::Culprit>{{1, false}}));
  EXPECT_EQ(Find({1}, {{1, {SearchKind::kWaits, 4}}, {4, {SearchKind::kWaits, 2}}, {2, {SearchKind::kBusy}}}),
            (std::vector<BlameSearch::Culprit>{{2, false}}));
}

TEST(BlameSearch, BlamesTheRankWithoutASignOfLife) {
  EXPECT_EQ(Find({1, 2}, {{1, {SearchKind::kWaits, 3}}, {2, {SearchKind::kWaits, 3}}, {3, {SearchKind::kNone}}}),
            (std::vector<BlameSearch::Culprit>{{3, true}}));
}

TEST(BlameSearch, FindsSeveral) {
  EXPECT_EQ(Find({1, 2}, {{1, {SearchKind::kBusy}}, {2, {SearchKind::kNone}}}),
            (std::vector<BlameSearch::Culprit>{{1, false}, {2, true}}));
}

TEST(BlameSearch, EndsInACircle) {
  EXPECT_EQ(Find({1}, {{1, {SearchKind::kWaits, 2}}, {2, {SearchKind::kWaits, 1}}}),
            (std::vector<BlameSearch::Culprit>{{1, false}}));
  EXPECT_EQ(Find({1}, {{1, {SearchKind::kWaits, 0}}}), (std::vector<BlameSearch::Culprit>{{1, false}}));
}

// Two ranks wait for each other, because both wait for the silent one.
TEST(BlameSearch, BlamesNoCircleBesideACulprit) {
  EXPECT_EQ(Find({2, 1}, {{2, {SearchKind::kWaits, 0}}, {1, {SearchKind::kNone}}}),
            (std::vector<BlameSearch::Culprit>{{1, true}}));
}

TEST(BlameSearch, NobodyIsLate) { EXPECT_TRUE(Find({}, {}).empty()); }

}  // namespace
}  // namespace lockstep
