// Tests the notices between the groups of a world, over links that record the sent messages.

#include "runtime/comm/transfer/group_notices.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using NoticeKind = Links::Notice::Kind;
using Reply = BlameSearch::Reply;

// Links that carry only notices. Those for this rank are put into `inbox`.
class NoticesAlone final : public Links {
 public:
  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int, int, MessageBuffer) override { return Internal() << "Send"; }
  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int, int, MessageBuffer) override {
    return Internal() << "Receive";
  }
  void SendNotice(int to_rank, const Notice& notice) override { sent.emplace_back(to_rank, notice); }
  std::optional<Notice> PollNotice() override {
    if (inbox.empty()) return std::nullopt;
    Notice notice = inbox.front();
    inbox.pop_front();
    return notice;
  }
  void Progress(absl::Duration) override {}
  absl::Status Lost(int) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Links>> Among(const std::vector<int>&, uint32_t, std::vector<int>) const override {
    return Internal() << "Among";
  }
  const std::vector<int>& group_begins() const override { return begins_; }

  // Returns the receivers of notices of a kind since the last call, in order.
  std::vector<int> TakeSent(NoticeKind kind) {
    std::vector<int> to;
    for (const auto& [rank, notice] : sent) {
      if (notice.kind == kind) to.push_back(rank);
    }
    EXPECT_EQ(to.size(), sent.size()) << "group_notices of another kind";
    sent.clear();
    return to;
  }

  std::vector<std::pair<int, Notice>> sent;
  std::deque<Notice> inbox;

 private:
  const std::vector<int> begins_ = {0, 1, 3};
};

// The group of ranks 1 and 2 of four. 0 and 3 form their own groups.
class GroupNoticesTest : public ::testing::Test {
 protected:
  struct Rank {
    std::unique_ptr<Group> group;
    NoticesAlone links;
    std::unique_ptr<GroupNotices> group_notices;
  };

  static GroupConfig Place(std::shared_ptr<Segment> memory, const ControlBlock& block, int index) {
    return {.keep = std::move(memory),
            .block = block,
            .index = index,
            .first_rank = 1,
            .one_process = true,
            .hosts = {"a", "b", "b", "c"},
            .on_leave = {}};
  }

  void SetUp() override {
    memory_ = *Segment::CreatePrivate(ControlBlock::Bytes(2));
    const ControlBlock block = ControlBlock::Initialize(memory_->data(), 2);
    for (int i = 0; i < 2; ++i) {
      block.rank(i).presence.store(Presence::kHere);
      Rank& rank = i == 0 ? first_ : second_;
      rank.group = std::make_unique<Group>(Place(memory_, block, i), absl::Seconds(10));
      rank.group_notices = std::make_unique<GroupNotices>(rank.group.get(), &rank.links);
    }
  }

  std::shared_ptr<Segment> memory_;  // shared by the groups
  Rank first_, second_;
};

const std::vector<int> kNobody, kOthers = {0, 3};

TEST_F(GroupNoticesTest, KnowWhoIsWhere) {
  EXPECT_EQ(first_.group_notices->groups(), 3);
  EXPECT_EQ(first_.group_notices->begins(), (std::vector<int>{0, 1, 3, 4}));
  for (const auto& [rank, group] : {std::pair(0, 0), {1, 1}, {2, 1}, {3, 2}}) {
    EXPECT_EQ(first_.group_notices->GroupOf(rank), group) << rank;
  }
  EXPECT_EQ(first_.group_notices->GroupSize(1), 2);
  EXPECT_EQ(first_.group_notices->GroupSize(2), 1);
}

TEST_F(GroupNoticesTest, TheReporterTellsAFailureOnce) {
  EXPECT_TRUE(first_.group_notices->Poll().ok());
  const absl::Status failure = first_.group->Fail(2, absl::AbortedError("enough"));
  EXPECT_EQ(second_.group_notices->Poll(), failure);
  EXPECT_EQ(second_.links.TakeSent(NoticeKind::kFailed), kNobody);  // the first does this
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first_.group_notices->Poll(), failure);
  ASSERT_FALSE(first_.links.sent.empty());
  EXPECT_EQ(first_.links.sent[0].second.rank, 2);
  EXPECT_EQ(first_.links.sent[0].second.status, failure);
  EXPECT_EQ(first_.links.TakeSent(NoticeKind::kFailed), kOthers);
  absl::SleepFor(absl::Milliseconds(250));
  (void)second_.group_notices->Poll();
  EXPECT_EQ(second_.links.TakeSent(NoticeKind::kFailed), kNobody);
}

// The world's record may exist before that of a split communicator, which does not name the culprit yet.
TEST_F(GroupNoticesTest, AFailureOfTheWorldIsNotToldBeforeItIsDeclaredHere) {
  std::shared_ptr<Segment> memory = *Segment::CreatePrivate(ControlBlock::Bytes(2));
  const ControlBlock block = ControlBlock::Initialize(memory->data(), 2);
  WorldGroups world_groups;
  const auto world = std::make_shared<Group>(Place(memory, block, 0), absl::Seconds(10));
  world_groups.Add(world);
  GroupConfig config = Place(memory_, ControlBlock(memory_->data(), 2), 0);
  config.world_groups = &world_groups;
  Group part(std::move(config), absl::Seconds(10));
  NoticesAlone links;
  GroupNotices group_notices(&part, &links);

  const absl::Status failure = world->FailHere(2, absl::AbortedError("enough"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(group_notices.Poll(), failure);
    absl::SleepFor(absl::Milliseconds(250));
  }
  EXPECT_EQ(links.TakeSent(NoticeKind::kFailed), kNobody);
  (void)part.FailHere(-1, failure);
  EXPECT_EQ(group_notices.Poll(), failure);
  ASSERT_FALSE(links.sent.empty());
  EXPECT_EQ(links.sent[0].second.rank, -1);
  EXPECT_EQ(links.TakeSent(NoticeKind::kFailed), kOthers);
}

TEST_F(GroupNoticesTest, OthersTellWhatTheReporterDoesNot) {
  (void)first_.group->Fail(1, absl::AbortedError("enough"));
  (void)second_.group_notices->Poll();
  EXPECT_EQ(second_.links.TakeSent(NoticeKind::kFailed), kNobody);
  absl::SleepFor(absl::Milliseconds(250));
  for (int i = 0; i < 3; ++i) (void)second_.group_notices->Poll();
  EXPECT_EQ(second_.links.TakeSent(NoticeKind::kFailed), kOthers);
  (void)first_.group_notices->Poll();
  EXPECT_EQ(first_.links.TakeSent(NoticeKind::kFailed), kNobody);
}

// The rank that found the failure notifies all.
TEST_F(GroupNoticesTest, WhatOneIsToldIsAFailureAndIsNotToldAgain) {
  first_.links.inbox.push_back(
      {.kind = NoticeKind::kFailed, .rank = 3, .from = 0, .status = absl::AbortedError("enough")});
  EXPECT_EQ(first_.group_notices->Poll(), absl::AbortedError("enough"));
  EXPECT_EQ(second_.group_notices->Poll(), absl::AbortedError("enough"));
  EXPECT_EQ(first_.group->failure_here()->culprit, 3);
  absl::SleepFor(absl::Milliseconds(250));
  for (Rank* rank : {&first_, &second_}) {
    (void)rank->group_notices->Poll();
    EXPECT_EQ(rank->links.TakeSent(NoticeKind::kFailed), kNobody);
  }
}

TEST_F(GroupNoticesTest, QuestionsAreAskedNowAndThen) {
  EXPECT_EQ(first_.group_notices->Ask(0, true).kind, Reply::Kind::kNone);
  for (int i = 0; i < 1000; ++i) (void)first_.group_notices->Ask(0, false);
  EXPECT_LE(first_.links.TakeSent(NoticeKind::kQuestion).size(), 20u);  // one; more on a slow machine
  absl::SleepFor(absl::Milliseconds(60));
  EXPECT_EQ(first_.group_notices->Ask(0, false).kind, Reply::Kind::kNone);
  EXPECT_EQ(first_.links.TakeSent(NoticeKind::kQuestion), (std::vector<int>{0}));
  first_.links.inbox.push_back({.kind = NoticeKind::kAnswer, .rank = 0, .from = 3, .status = {}});
  first_.links.inbox.push_back({.kind = NoticeKind::kAnswer, .rank = -1, .from = 0, .status = {}});
  EXPECT_TRUE(first_.group_notices->Poll().ok());
  EXPECT_EQ(first_.group_notices->Ask(0, false).kind, Reply::Kind::kBusy);
  EXPECT_EQ(first_.group_notices->Ask(3, false).kind, Reply::Kind::kWaits);
  EXPECT_EQ(first_.group_notices->Ask(3, false).rank, 0);
  EXPECT_EQ(first_.group_notices->Ask(3, true).kind, Reply::Kind::kNone);  // earlier answers do not count
}

TEST_F(GroupNoticesTest, QuestionsAreAnswered) {
  for (int waits_for : {3, 0}) {
    first_.group->AnnounceWaiting(waits_for);
    first_.links.inbox.push_back({.kind = NoticeKind::kQuestion, .rank = -1, .from = 3, .status = {}});
    EXPECT_TRUE(first_.group_notices->Poll().ok());
    ASSERT_EQ(first_.links.sent.size(), 1u);
    EXPECT_EQ(first_.links.sent[0].second.rank, waits_for);
    EXPECT_EQ(first_.links.TakeSent(NoticeKind::kAnswer), (std::vector<int>{3}));
  }
  first_.group->AnnounceRunning();
  first_.links.inbox.push_back({.kind = NoticeKind::kQuestion, .rank = -1, .from = 0, .status = {}});
  EXPECT_TRUE(first_.group_notices->Poll().ok());
  ASSERT_EQ(first_.links.sent.size(), 1u);
  EXPECT_LT(first_.links.sent[0].second.rank, 0);
}

TEST_F(GroupNoticesTest, TheLastOfAGroupSaysThatItIsGone) {
  first_.group_notices->Leave(/*last_of_group=*/false);
  EXPECT_EQ(first_.links.TakeSent(NoticeKind::kLeft), kNobody);
  second_.group_notices->Leave(/*last_of_group=*/true);
  EXPECT_EQ(second_.links.TakeSent(NoticeKind::kLeft), kOthers);
  first_.links.inbox.push_back({.kind = NoticeKind::kLeft, .rank = -1, .from = 0, .status = {}});
  EXPECT_FALSE(first_.group_notices->HasLeft(0));
  EXPECT_TRUE(first_.group_notices->Poll().ok());
  EXPECT_TRUE(first_.group_notices->HasLeft(0));
  for (int rank : {1, 2, 3}) EXPECT_FALSE(first_.group_notices->HasLeft(rank)) << rank;
  // A group that has left gets no more notices.
  first_.group_notices->Leave(/*last_of_group=*/true);
  EXPECT_THAT(first_.links.TakeSent(NoticeKind::kLeft), testing::Not(testing::Contains(0)));
}

// A leaving rank also announces a failure, and then does not announce that it is done.
TEST_F(GroupNoticesTest, AFailedGroupTellsThatInPlaceOfLeaving) {
  (void)first_.group->Fail(1, absl::AbortedError("enough"));
  const absl::Time begin = absl::Now();
  first_.group_notices->Leave(/*last_of_group=*/true);
  EXPECT_EQ(first_.links.TakeSent(NoticeKind::kFailed), kOthers);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(290));  // time for the messages to leave
}

}  // namespace
}  // namespace lockstep
