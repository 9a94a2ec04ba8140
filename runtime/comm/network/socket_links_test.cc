// Messages between ranks that are threads of this process, over its loopback interface.

#include "runtime/comm/network/socket_links.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/comm/network/exchange.h"
#include "runtime/process/clock.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::vector<std::unique_ptr<Links>> LinksOf(int ranks) {
  std::vector<std::shared_ptr<SocketListener>> listeners;
  std::vector<ListenerInfo> places;
  std::vector<int> groups;
  for (int rank = 0; rank < ranks; ++rank) {
    listeners.push_back(SocketListener::Create("lo").value());
    places.push_back(listeners.back()->info());
    groups.push_back(rank);
  }
  std::vector<std::unique_ptr<Links>> links;
  for (int rank = 0; rank < ranks; ++rank)
    links.push_back(CreateSocketLinks(listeners[rank], rank, places, groups).value());
  return links;
}

MessageBuffer Message(size_t bytes, int value = 0) {
  auto message = std::make_shared<MessageBytes>(bytes);
  std::fill_n(message->data(), bytes, static_cast<std::byte>(value));
  return message;
}

bool AreEqual(const MessageBuffer& a, const MessageBuffer& b) {
  return std::equal(a->data(), a->data() + a->size(), b->data(), b->data() + b->size());
}

absl::Duration ProcessorTime() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

// Lets all of `links` make progress until `done`. Returns false after 20 s.
bool Until(const std::function<bool()>& done, std::vector<Links*> links) {
  const absl::Duration end = SteadyNow() + absl::Seconds(20);
  while (!done()) {
    if (SteadyNow() > end) return false;
    for (Links* each : links) each->Progress(absl::Milliseconds(links.size() == 1 ? 20 : 1));
  }
  return true;
}

bool IsDone(LinkRequest& request) {
  const absl::StatusOr<bool> done = request.Test();
  EXPECT_TRUE(done.ok()) << done.status();
  return done.ok() && *done;
}

TEST(SocketLinks, MessagesWithOneTagArriveInOrderAndTagsApart) {
  auto links = LinksOf(2);
  // Sent before any receive, with several sizes. Some are read ahead together, some are not.
  const std::vector<size_t> sizes = {0, 1, 5, 40'000, 0, 3'000'000, 7};
  std::vector<std::unique_ptr<LinkRequest>> sends;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sends.push_back(links[0]->Send(1, 5, Message(sizes[i], static_cast<int>(i + 1))).value());
    sends.push_back(links[0]->Send(1, 6, Message(3, static_cast<int>(100 + i))).value());
  }
  std::vector<MessageBuffer> fives, sixes;
  std::vector<std::unique_ptr<LinkRequest>> receives;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sixes.push_back(Message(3));
    receives.push_back(links[1]->Receive(0, 6, sixes.back()).value());
  }
  ASSERT_TRUE(Until([&] { return IsDone(*receives.back()); }, {links[0].get(), links[1].get()}));
  for (size_t i = 0; i < sizes.size(); ++i) {  // these have arrived unexpectedly
    fives.push_back(Message(sizes[i]));
    receives.push_back(links[1]->Receive(0, 5, fives.back()).value());
  }
  ASSERT_TRUE(Until([&] { return IsDone(*receives.back()); }, {links[0].get(), links[1].get()}));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(AreEqual(fives[i], Message(sizes[i], static_cast<int>(i + 1)))) << i;
    EXPECT_TRUE(AreEqual(sixes[i], Message(3, static_cast<int>(100 + i)))) << i;
    EXPECT_TRUE(IsDone(*sends[2 * i]));
  }
}

TEST(SocketLinks, BothWaysAtOnce) {
  auto links = LinksOf(2);
  constexpr size_t kBytes = 8 << 20;  // larger than the kernel's buffers
  std::vector<MessageBuffer> received = {Message(kBytes), Message(kBytes)};
  std::vector<std::unique_ptr<LinkRequest>> requests;
  for (int rank : {0, 1}) {
    requests.push_back(links[rank]->Receive(1 - rank, 0, received[rank]).value());
    requests.push_back(links[rank]->Send(1 - rank, 0, Message(kBytes, rank + 1)).value());
  }
  const auto all = [&] {
    return std::all_of(requests.begin(), requests.end(), [](const auto& each) { return IsDone(*each); });
  };
  ASSERT_TRUE(Until(all, {links[0].get(), links[1].get()}));
  EXPECT_TRUE(AreEqual(received[0], Message(kBytes, 2)));
  EXPECT_TRUE(AreEqual(received[1], Message(kBytes, 1)));
}

TEST(SocketLinks, AMessageOfAnotherSizeIsAnError) {
  for (const bool comes_first : {true, false}) {
    auto links = LinksOf(2);
    auto sent = links[0]->Send(1, 0, Message(40)).value();
    auto later = links[0]->Send(1, 1, Message(1)).value();
    const MessageBuffer last = Message(1);
    auto receive_last = links[1]->Receive(0, 1, last).value();
    absl::Status status;
    std::unique_ptr<LinkRequest> wrong;
    if (!comes_first) wrong = links[1]->Receive(0, 0, Message(44)).value();
    ASSERT_TRUE(Until([&] { return IsDone(*receive_last); }, {links[0].get(), links[1].get()}));
    status = comes_first ? links[1]->Receive(0, 0, Message(44)).status() : wrong->Test().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a message of 40 bytes where 44 were expected"));
  }
}

// A message that is larger than one read is partly received when the receive starts.
TEST(SocketLinks, AMessageMayBeAskedForWhileItComes) {
  constexpr size_t kBytes = 32 << 20;
  for (const size_t asked : {kBytes, kBytes - 1}) {
    auto links = LinksOf(2);
    auto before = links[1]->Receive(0, 1, Message(1)).value();
    auto sent_before = links[0]->Send(1, 1, Message(1)).value();
    auto sent = links[0]->Send(1, 0, Message(kBytes, 7)).value();
    // Both leave together: the first bytes of the large one are read behind the small one.
    ASSERT_TRUE(Until([&] { return IsDone(*before); }, {links[0].get(), links[1].get()}));
    ASSERT_FALSE(IsDone(*sent)) << "it was all there, and this test none";
    const MessageBuffer received = Message(asked);
    auto receive = links[1]->Receive(0, 0, received).value();
    absl::StatusOr<bool> done = false;
    ASSERT_TRUE(Until([&] { return !(done = receive->Test()).ok() || *done; }, {links[0].get(), links[1].get()}));
    if (asked == kBytes) {
      EXPECT_TRUE(done.ok()) << done.status();
      EXPECT_TRUE(AreEqual(received, Message(kBytes, 7)));
    } else {
      EXPECT_EQ(done.status().code(), absl::StatusCode::kOutOfRange) << done.status();
    }
  }
}

TEST(Exchange, GetsAMessageOfEachInTheOrderOfReceivers) {
  EXPECT_TRUE(Exchange().done());
  const auto links = LinksOf(3);
  std::vector<Exchange> exchanges;
  const std::vector<std::vector<int>> others = {{2, 1}, {0, 2}, {1, 0}};
  for (int rank = 0; rank < 3; ++rank)
    exchanges.push_back(Exchange::Begin(*links[rank], others[rank], others[rank], 5, Message(100, rank)).value());
  EXPECT_THAT(exchanges[0].Missing(), ::testing::ElementsAre(2, 1));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(Until([&] { return exchanges[rank].Step().ok() && exchanges[rank].done(); },
                      {links[0].get(), links[1].get(), links[2].get()}));
    EXPECT_TRUE(exchanges[rank].Missing().empty());
    ASSERT_EQ(exchanges[rank].received().size(), 2u);
    for (int i : {0, 1}) EXPECT_TRUE(AreEqual(exchanges[rank].received()[i], Message(100, others[rank][i])));
  }
}

TEST(SocketLinks, NoticesCarryWhatFailed) {
  auto links = LinksOf(3);
  links[2]->SendNotice(0,
                       {.kind = Links::Notice::Kind::kFailed, .rank = 1, .status = absl::AbortedError("it is over")});
  std::optional<Links::Notice> notice;
  ASSERT_TRUE(Until([&] { return (notice = links[0]->PollNotice()).has_value(); }, {links[2].get(), links[0].get()}));
  EXPECT_EQ(notice->kind, Links::Notice::Kind::kFailed);
  EXPECT_EQ(notice->rank, 1);
  EXPECT_EQ(notice->from, 2);
  EXPECT_EQ(notice->status, absl::AbortedError("it is over"));
}

TEST(SocketLinks, OfSomeRanksHaveMessagesOfTheirOwn) {
  auto links = LinksOf(3);
  std::vector<std::unique_ptr<Links>> pair;
  for (int rank : {0, 2}) pair.push_back(links[rank]->Among({0, 2}, 9, {0, 1}).value());
  auto in_world = links[0]->Send(2, 0, Message(1, 1)).value();
  auto in_pair = pair[0]->Send(1, 0, Message(1, 2)).value();
  const MessageBuffer of_pair = Message(1), of_world = Message(1);
  auto first = pair[1]->Receive(0, 0, of_pair).value();
  auto second = links[2]->Receive(0, 0, of_world).value();
  std::vector<Links*> all = {links[0].get(), links[2].get(), pair[0].get(), pair[1].get()};
  ASSERT_TRUE(Until([&] { return IsDone(*first); }, all));
  ASSERT_TRUE(Until([&] { return IsDone(*second); }, all));
  EXPECT_EQ(of_pair->data()[0], std::byte{2});
  EXPECT_EQ(of_world->data()[0], std::byte{1});
}

// Ranks have other numbers in each part, and the ranks of a part of a part are numbers in the part.
TEST(SocketLinks, OfSomeOfSomeRanksReachTheRightOnes) {
  auto links = LinksOf(4);
  std::vector<std::unique_ptr<Links>> parts, pair;
  for (int rank : {1, 2, 3}) parts.push_back(links[rank]->Among({1, 2, 3}, 9, {0, 1, 2}).value());
  for (int part : {1, 2}) pair.push_back(parts[part]->Among({1, 2}, 10, {0, 1}).value());  // 2 and 3 of the world
  auto send = pair[0]->Send(1, 0, Message(1, 5)).value();
  const MessageBuffer received = Message(1);
  auto receive = pair[1]->Receive(0, 0, received).value();
  ASSERT_TRUE(Until([&] { return IsDone(*receive); }, {pair[0].get(), pair[1].get(), links[1].get(), links[2].get()}));
  EXPECT_EQ(received->data()[0], std::byte{5});
}

TEST(SocketLinks, APeerThatIsGoneIsLost) {
  auto links = LinksOf(3);
  const MessageBuffer hello = Message(1);
  auto receive = links[0]->Receive(1, 0, hello).value();
  auto send = links[1]->Send(0, 0, Message(1, 3)).value();
  ASSERT_TRUE(Until([&] { return IsDone(*receive); }, {links[0].get(), links[1].get()}));
  EXPECT_TRUE(links[0]->Lost(1).ok());
  links[1].reset();
  ASSERT_TRUE(Until([&] { return !links[0]->Lost(1).ok(); }, {links[0].get()}));
  EXPECT_THAT(std::string(links[0]->Lost(1).message()), HasSubstr("its connection is closed"));
  EXPECT_TRUE(links[0]->Lost(2).ok());
  // A sender to a rank that it never connected to, and that is gone, gets the error of its addresses.
  links[2].reset();
  auto in_vain = links[0]->Send(2, 0, Message(1)).value();
  ASSERT_TRUE(Until([&] { return !links[0]->Lost(2).ok(); }, {links[0].get()}));
  EXPECT_THAT(std::string(links[0]->Lost(2).message()), HasSubstr("cannot be reached: 127.0.0.1 port "));
  EXPECT_FALSE(IsDone(*in_vain));
}

// A rank that waits for messages gives up an address that does not answer in time, even during a longer wait.
TEST(SocketLinks, APeerThatDoesNotAnswerIsLostThoughNothingHappens) {
  const auto here = SocketListener::Create("lo").value(), there = SocketListener::Create("lo").value();
  auto links = CreateSocketLinks(here, 0, {here->info(), there->info()}, {0, 1}).value();  // without links of rank 1
  const absl::Duration begin = SteadyNow();
  auto in_vain = links->Send(1, 0, Message(1)).value();
  while (links->Lost(1).ok() && SteadyNow() - begin < absl::Seconds(30)) links->Progress(absl::Seconds(30));
  EXPECT_LT(SteadyNow() - begin, absl::Seconds(15));
  EXPECT_THAT(std::string(links->Lost(1).message()), HasSubstr("no answer"));
}

TEST(SocketLinks, WhatWasSentArrivesThoughTheSenderLeaves) {
  auto links = LinksOf(2);
  constexpr size_t kBytes = 1 << 20;
  const MessageBuffer received = Message(kBytes);
  auto receive = links[1]->Receive(0, 0, received).value();
  std::thread leaving([&] {
    auto send = links[0]->Send(1, 0, Message(kBytes, 7)).value();
    links[0].reset();
  });
  EXPECT_TRUE(Until([&] { return IsDone(*receive); }, {links[1].get()}));
  leaving.join();
  EXPECT_TRUE(AreEqual(received, Message(kBytes, 7)));
}

// Destruction takes no time if all messages have been sent, or if their receiver has left before.
TEST(SocketLinks, LeavingWaitsForNothingInVain) {
  auto listeners = std::vector{SocketListener::Create("lo").value(), SocketListener::Create("lo").value()};
  const std::vector<ListenerInfo> places = {listeners[0]->info(), listeners[1]->info()};
  for (const bool peer_leaves_first : {false, true}) {
    std::vector<std::unique_ptr<Links>> links;
    for (int rank : {0, 1}) links.push_back(CreateSocketLinks(listeners[rank], rank, places, {0, 1}).value());
    auto receive = links[0]->Receive(1, 0, Message(1)).value();
    auto send = links[1]->Send(0, 0, Message(1)).value();
    ASSERT_TRUE(Until([&] { return IsDone(*receive); }, {links[0].get(), links[1].get()}));
    if (peer_leaves_first) {
      links[1].reset();
    } else {
      auto there = links[0]->Send(1, 0, Message(1)).value();
      ASSERT_TRUE(Until([&] { return IsDone(*there); }, {links[0].get(), links[1].get()}));
    }
    links[0]->SendNotice(1, {.kind = Links::Notice::Kind::kLeft, .status = {}});
    const absl::Duration begin = SteadyNow();
    links[0].reset();
    EXPECT_LT(SteadyNow() - begin, absl::Milliseconds(150)) << peer_leaves_first;
  }
}

TEST(SocketLinks, WhoHasNoTimeLeftDoesNotWait) {
  auto links = LinksOf(2);
  std::future<void> progress = std::async(std::launch::async, [&] { links[0]->Progress(-absl::Milliseconds(2)); });
  const bool has_returned = progress.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_TRUE(has_returned);
  if (has_returned) return;
  const auto wakes = links[1]->Send(0, 5, Message(1)).value();
  while (progress.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    links[1]->Progress(absl::Milliseconds(1));
}

TEST(SocketLinks, WhoWaitsSleepsAndWakesSoon) {
  auto links = LinksOf(2);
  const MessageBuffer ping = Message(8), pong = Message(8);
  std::atomic<bool> stop{false};
  std::thread answering([&] {
    while (!stop) {
      auto receive = links[1]->Receive(0, 0, pong).value();
      while (!stop && !IsDone(*receive)) links[1]->Progress(absl::Milliseconds(100));
      if (stop) return;
      auto send = links[1]->Send(0, 0, pong).value();
    }
  });
  std::vector<absl::Duration> times;
  for (int i = 0; i < 200; ++i) {
    const absl::Duration begin = SteadyNow();
    auto receive = links[0]->Receive(1, 0, ping).value();
    auto send = links[0]->Send(1, 0, ping).value();
    while (!IsDone(*receive)) links[0]->Progress(absl::Milliseconds(100));
    times.push_back(SteadyNow() - begin);
  }
  const absl::Duration used_before = ProcessorTime();
  links[0]->Progress(absl::Milliseconds(500));
  EXPECT_LT(ProcessorTime() - used_before, absl::Milliseconds(150)) << "both only wait";
  stop = true;
  answering.join();
  std::nth_element(times.begin(), times.begin() + 100, times.end());
  EXPECT_LT(times[100], absl::Milliseconds(20)) << "a fraction of the time that they would sleep";
  std::printf("a message and its answer took %s\n", absl::FormatDuration(times[100]).c_str());
}

}  // namespace
}  // namespace lockstep
