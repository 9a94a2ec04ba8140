// Tests a group in failures at inconvenient moments: states that the conformance suite hits too rarely.

#include "runtime/comm/host/group.h"

#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/process/process.h"

namespace lockstep {
namespace {

// Two ranks that are threads of this process.
class GroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    memory_ = *Segment::CreatePrivate(ControlBlock::Bytes(2));
    block_ = ControlBlock::Initialize(memory_->data(), 2);
    for (int i = 0; i < 2; ++i) block_.rank(i).presence.store(Presence::kHere);
  }
  std::unique_ptr<Group> Rank(int index, absl::Duration timeout) {
    return std::make_unique<Group>(GroupConfig{.keep = memory_,
                                               .block = block_,
                                               .index = index,
                                               .first_rank = 0,
                                               .one_process = true,
                                               .hosts = {"a", "a"},
                                               .on_leave = {}},
                                   timeout);
  }

  std::shared_ptr<Segment> memory_;  // shared by the groups
  ControlBlock block_;
};

// The operands of a rank without peers on its host are used where they lie. With peers they must be copied.
TEST(PeerMemoryTest, AnOperandThatNoPeerReachesIsFoundByItsAddress) {
  float operand[4] = {};
  PeerMemory alone(false, true), with_peers(false, false);
  EXPECT_FALSE(with_peers.Find(operand, sizeof(operand)).has_value());
  const auto found = alone.Find(operand, sizeof(operand));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*alone.Resolve(0, getpid(), found->ref, sizeof(operand)), reinterpret_cast<std::byte*>(operand));
  const std::shared_ptr<Segment> allocated = *alone.Allocate(64, 2);
  EXPECT_EQ(alone.Find(allocated->data(), 64)->segment, allocated);  // it lives until the collective is done
}

// Work that is refused because a peer failed is never taken for done, even before the peer has written the reason.
TEST_F(GroupTest, WorkIsRefusedWithAnErrorWhileAFailureIsBeingWritten) {
  auto group = Rank(0, absl::Seconds(10));
  Failure& failure = block_.header().failure;
  failure.state.store(1);
  std::thread writer([&] {
    absl::SleepFor(absl::Milliseconds(50));
    failure.code = static_cast<int32_t>(absl::StatusCode::kAborted);
    CopyText("rank 1 gave up", failure.message, kMessageBytes);
    failure.state.store(2);
  });
  EXPECT_EQ(group->BeginWork(), absl::AbortedError("rank 1 gave up"));
  writer.join();
  EXPECT_EQ(block_.rank(0).working.load(), 0u);
}

TEST_F(GroupTest, WorkIsRefusedWithAnErrorIfNobodySaysWhy) {
  auto group = Rank(0, absl::Seconds(10));
  block_.header().failure.state.store(1);
  EXPECT_FALSE(group->BeginWork().ok());
}

// After an abort, the operands may be freed only when the rank's other threads no longer use them.
TEST_F(GroupTest, UntouchedMeansByThisRankToo) {
  auto group = Rank(0, absl::Seconds(10));
  ASSERT_TRUE(group->BeginWork().ok());
  std::atomic<bool> done{false};
  std::thread worker([&] {
    absl::SleepFor(absl::Milliseconds(50));
    done = true;
    group->EndWork();
  });
  (void)group->Fail(0, absl::AbortedError("aborted"));
  group->AwaitUntouched();
  EXPECT_TRUE(done);
  worker.join();
}

// A wait without a known late rank also ends.
TEST_F(GroupTest, AWaitForNobodyIsBounded) {
  auto group = Rank(0, absl::Milliseconds(50));
  const absl::Status status =
      group->Await([] { return false; }, [] { return std::vector<int>(); }, [] { return "something"; });
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 0 on host a waited 50ms in something")) << status;
}

// Tests the answer to ranks that ask for whom this rank waits.
TEST_F(GroupTest, ARankSaysForWhomItWaits) {
  auto group = Rank(0, absl::Seconds(10));
  std::vector<int> said;
  group->OnIdle([&] { said.push_back(group->waits_for()); }, nullptr);
  EXPECT_LT(group->waits_for(), 0);
  for (const std::vector<int>& late : {std::vector<int>{1}, std::vector<int>{}}) {
    said.clear();
    int looks = 0;
    const absl::Status status =
        group->Await([&] { return said.size() >= 2 && ++looks > 2; }, [&] { return late; }, [] { return "something"; });
    EXPECT_TRUE(status.ok()) << status;
    ASSERT_GE(said.size(), 2u);
    for (int rank : said) EXPECT_EQ(rank, late.empty() ? -1 : 1);
    EXPECT_LT(group->waits_for(), 0);
  }
}

// A share that is done for one collective is not done for a later one.
TEST_F(GroupTest, UnfinishedAreThoseWhoWorkOnThisCollective) {
  auto first = Rank(0, absl::Seconds(10)), second = Rank(1, absl::Seconds(10));
  const std::vector<int> nobody, other = {1};
  first->BeginShare(7);  // its own share is not included
  EXPECT_EQ(first->Unfinished(7, /*given=*/true), other);
  EXPECT_EQ(first->Unfinished(7, /*given=*/false), nobody);
  for (uint64_t sequence : {7, 8, 9, 12}) {
    second->BeginShare(sequence);
    EXPECT_EQ(first->Unfinished(sequence, true), other) << sequence;
    EXPECT_EQ(first->Unfinished(sequence, false), other) << sequence;
    EXPECT_EQ(first->Unfinished(sequence - 1, true), nobody) << sequence;
    second->EndShare(sequence);
    EXPECT_EQ(first->Unfinished(sequence, true), nobody) << sequence;
    EXPECT_EQ(first->Unfinished(sequence, false), nobody) << sequence;
    EXPECT_EQ(first->Unfinished(sequence + 1, true), other) << sequence;
    EXPECT_EQ(first->Unfinished(sequence + 1, false), nobody) << sequence;
  }
  (void)second->Leave();
  EXPECT_EQ(first->Unfinished(13, true), nobody);
}

TEST(PerOpCounter, StartsAtZeroForEachCollectiveAndStopsAtTheLimit) {
  PerOpCounter counter;
  EXPECT_EQ(counter.Get(0), 0u);
  for (uint64_t sequence : {uint64_t{3}, 3 + kSlots, 3 + 2 * kSlots}) {
    EXPECT_EQ(counter.Get(sequence), 0u);
    for (uint32_t i : {0, 1, 2, 2}) EXPECT_EQ(counter.IncrementBelow(sequence, 2), i);
    EXPECT_EQ(counter.Get(sequence), 2u);
  }
  EXPECT_EQ(counter.Get(3), 0u);
}

TEST(CopyText, CopiesAsMuchAsFits) {
  char text[4] = "xyz";
  CopyText("abcdef", text, sizeof(text));
  EXPECT_STREQ(text, "abc");
  CopyText({}, text, sizeof(text));
  EXPECT_STREQ(text, "");
}

}  // namespace
}  // namespace lockstep
