// Messages between ranks that are threads of this process.

#include "runtime/comm/messages.h"

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/in_process.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

// A receive of a text.
struct Received {
  Received(Messages& messages, int from, int64_t tag, size_t size)
      : text(size, ' '), ticket(messages.Receive(from, tag, std::as_writable_bytes(std::span(text)))) {}
  std::string text;
  Messages::Ticket ticket;
};

// Runs `body` on n ranks, each with its end.
void OnRanks(int n, const std::function<void(int rank, std::unique_ptr<Messages> messages)>& body) {
  auto worlds = CreateInProcess(n).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      auto messages = Messages::Create(*worlds[rank]);
      ASSERT_TRUE(messages.ok()) << messages.status();
      body(rank, *std::move(messages));
    });
  }
  for (std::thread& each : threads) each.join();
}

TEST(Messages, ArriveByTagAndInOrder) {
  OnRanks(2, [](int rank, std::unique_ptr<Messages> messages) {
    if (rank == 0) {
      std::vector<Messages::Ticket> tickets;
      for (const char* text : {"a", "bc", ""}) tickets.push_back(messages->Send(1, 7, BytesOf(text)));
      tickets.push_back(messages->Send(1, -3, BytesOf("other")));
      for (Messages::Ticket each : tickets) EXPECT_EQ(messages->Wait(each, kLimit).value(), 1);
    } else {
      Received other(*messages, 0, -3, 5), a(*messages, 0, 7, 1);
      EXPECT_EQ(messages->Wait(other.ticket, kLimit).value(), 0);
      EXPECT_EQ(messages->Wait(a.ticket, kLimit).value(), 0);
      Received bc(*messages, 0, 7, 2), none(*messages, 0, 7, 0);
      EXPECT_EQ(messages->Wait(none.ticket, kLimit).value(), 0);
      EXPECT_EQ(messages->Wait(bc.ticket, kLimit).value(), 0);
      EXPECT_EQ(other.text + a.text + bc.text, "otherabc");
    }
  });
}

TEST(Messages, FromAnyRankNameTheSender) {
  OnRanks(4, [](int rank, std::unique_ptr<Messages> messages) {
    if (rank != 2) {
      EXPECT_TRUE(messages->Wait(messages->Send(2, 1, BytesOf(std::to_string(rank))), kLimit).ok());
      return;
    }
    std::vector<int> senders;
    for (int i = 0; i < 3; ++i) {
      Received any(*messages, Messages::kAnyRank, 1, 1);
      senders.push_back(messages->Wait(any.ticket, kLimit).value());
      EXPECT_EQ(any.text, std::to_string(senders.back()));
    }
    EXPECT_THAT(senders, ::testing::UnorderedElementsAre(0, 1, 3));
  });
}

TEST(Messages, LargerThanTheKernelsBuffersGoBothWays) {
  OnRanks(2, [](int rank, std::unique_ptr<Messages> messages) {
    const std::string mine(20'000'000, static_cast<char>('a' + rank));
    const Messages::Ticket sent = messages->Send(1 - rank, 0, BytesOf(mine));
    Received theirs(*messages, 1 - rank, 0, mine.size());
    EXPECT_TRUE(messages->Wait(sent, kLimit).ok());
    EXPECT_TRUE(messages->Wait(theirs.ticket, kLimit).ok());
    EXPECT_EQ(theirs.text, std::string(mine.size(), static_cast<char>('b' - rank)));
  });
}

TEST(Messages, ThatWereSentArriveFromARankThatHasLeft) {
  OnRanks(2, [](int rank, std::unique_ptr<Messages> messages) {
    if (rank == 0) return (void)messages->Wait(messages->Send(1, 0, BytesOf("farewell")), kLimit);
    Received first(*messages, 0, 0, 8), second(*messages, 0, 0, 8);
    EXPECT_TRUE(messages->Wait(first.ticket, kLimit).ok());
    EXPECT_EQ(first.text, "farewell");
    const absl::Status none = messages->Wait(second.ticket, kLimit).status();
    EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(none.message(), HasSubstr("rank 0 on host "));
  });
}

TEST(Messages, OfAnotherSizeNameBoth) {
  OnRanks(2, [](int rank, std::unique_ptr<Messages> messages) {
    if (rank == 0) return (void)messages->Wait(messages->Send(1, 5, BytesOf("four")), kLimit);
    Received three(*messages, 0, 5, 3);
    const absl::Status wrong = messages->Wait(three.ticket, kLimit).status();
    EXPECT_EQ(wrong.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(wrong.message(), HasSubstr("sent 4 bytes with tag 5, and 3 were expected"));
    EXPECT_EQ(three.text, "   ");
  });
}

TEST(Messages, ThatDoNotComeLeaveTheTicketValid) {
  OnRanks(2, [](int rank, std::unique_ptr<Messages> messages) {
    if (rank == 1) {
      Received wanted(*messages, 0, 1, 2);
      EXPECT_TRUE(messages->Wait(wanted.ticket, kLimit).ok());
      return (void)messages->Wait(messages->Send(0, 0, BytesOf("x")), kLimit);
    }
    Received late(*messages, 1, 0, 1);
    EXPECT_EQ(messages->Wait(late.ticket, absl::Milliseconds(20)).status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(messages->Wait(messages->Send(1, 1, BytesOf("go")), kLimit).ok());
    EXPECT_TRUE(messages->Wait(late.ticket, kLimit).ok());
    EXPECT_EQ(late.text, "x");
    EXPECT_EQ(messages->Wait(late.ticket, kLimit).status().code(), absl::StatusCode::kInvalidArgument);
  });
}

TEST(Messages, WithoutAMessageLeaveAtOnce) {
  OnRanks(3, [](int rank, std::unique_ptr<Messages> messages) {
    if (rank == 0) messages->Receive(1, 0, {});  // in flight at destruction
  });
}

}  // namespace
}  // namespace lockstep
