// Connections between ranks that are threads of this process, over its loopback interface.

#include "runtime/comm/network/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/process/clock.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

ListenerInfo::Address V4(const char* text, int prefix = 24, bool is_loopback = false) {
  ListenerInfo::Address address;
  inet_pton(AF_INET, text, address.bytes);
  address.prefix_bits = static_cast<uint8_t>(prefix);
  address.is_loopback = is_loopback;
  return address;
}

ListenerInfo InfoOf(std::vector<ListenerInfo::Address> addresses) {
  ListenerInfo info;
  info.count = static_cast<uint16_t>(addresses.size());
  std::copy(addresses.begin(), addresses.end(), info.addresses);
  return info;
}

std::string BytesText(const ListenerInfo::Address& address) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(address.is_v6 ? AF_INET6 : AF_INET, address.bytes, text, sizeof(text));
}

std::shared_ptr<SocketListener> Listener() {
  auto listener = SocketListener::Create("lo");
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

// Lets `connecting` continue, and the listener answer, until it is established or has failed.
absl::Status Finish(Connecting& connecting, SocketListener* listener) {
  const absl::Duration end = SteadyNow() + absl::Seconds(10);
  while (SteadyNow() < end) {
    const absl::StatusOr<bool> is_there = connecting.Step();
    if (!is_there.ok()) return is_there.status();
    if (*is_there) return absl::OkStatus();
    if (listener != nullptr) listener->Accept();
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::DeadlineExceededError("the connection is neither there nor refused");
}

// Returns a connection of `channel` from rank 7 to the listener.
absl::StatusOr<Descriptor> ConnectTo(SocketListener& listener, uint32_t channel = 0) {
  const ListenerInfo& info = listener.info();
  Connecting connecting(WaysTo(info, info), info, {.nonce = info.nonce, .channel = channel, .from = 7});
  if (const absl::Status status = Finish(connecting, &listener); !status.ok()) return status;
  return connecting.Release();
}

bool IsReadable(int descriptor, int milliseconds = 2000) {
  pollfd look{.fd = descriptor, .events = POLLIN, .revents = 0};
  return poll(&look, 1, milliseconds) == 1;
}

TEST(WaysTo, NetworksThatBothHaveComeFirstAndLoopbackLast) {
  const ListenerInfo here = InfoOf({V4("192.168.3.4"), V4("10.1.2.3", 16), V4("127.0.0.1", 8, true)});
  const ListenerInfo peer = InfoOf({V4("127.0.0.1", 8, true), V4("172.17.0.1"), V4("10.1.9.9", 16), V4("192.168.4.4")});
  std::vector<std::string> ways;
  for (const ListenerInfo::Address& way : WaysTo(here, peer)) ways.push_back(BytesText(way));
  EXPECT_EQ(ways, (std::vector<std::string>{"10.1.9.9", "172.17.0.1", "192.168.4.4", "127.0.0.1"}));
}

// Of 20 bits, the last four are in the third byte. Equal bits of the other address family are another network.
TEST(WaysTo, NetworksMayEndWithinAByte) {
  const ListenerInfo here = InfoOf({V4("10.1.17.3", 20)});
  ListenerInfo::Address v6 = V4("10.1.17.9", 20);
  v6.is_v6 = 1;
  const ListenerInfo peer = InfoOf({v6, V4("10.1.32.1", 20), V4("10.1.30.1", 20)});
  const std::vector<ListenerInfo::Address> ways = WaysTo(here, peer);
  ASSERT_EQ(ways.size(), 3u);
  EXPECT_EQ(BytesText(ways[0]), "10.1.30.1");
  EXPECT_TRUE(ways[1].is_v6);
  EXPECT_EQ(BytesText(ways[2]), "10.1.32.1");
}

TEST(SocketListener, NamesTheInterfacesItMayUse) {
  const ListenerInfo info = Listener()->info();
  ASSERT_GE(info.count, 1);
  for (int i = 0; i < info.count; ++i) EXPECT_TRUE(info.addresses[i].is_loopback);
  EXPECT_TRUE(SocketListener::Create("nothing,l").ok()) << "the begin of a name is enough";
  const absl::Status none = SocketListener::Create("nothing").status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("no network interface that LOCKSTEP_INTERFACE=nothing names"));
}

TEST(SocketListener, GivesEachChannelItsConnections) {
  const auto listener = Listener();
  const int event = listener->Open(3);
  EXPECT_FALSE(IsReadable(event, 0));
  const absl::StatusOr<Descriptor> to_three = ConnectTo(*listener, 3), early = ConnectTo(*listener, 4);
  ASSERT_TRUE(to_three.ok()) << to_three.status();
  ASSERT_TRUE(early.ok()) << early.status();
  EXPECT_TRUE(IsReadable(event));
  const auto arrivals = listener->Take(3);
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].from, 7);
  EXPECT_FALSE(IsReadable(event, 0));

  ASSERT_EQ(write(to_three->get(), "x", 1), 1);
  char byte = 0;
  ASSERT_TRUE(IsReadable(arrivals[0].connection.get()));
  EXPECT_EQ(read(arrivals[0].connection.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');

  EXPECT_TRUE(IsReadable(listener->Open(4))) << "what came before the channel was opened";
  EXPECT_EQ(listener->Take(4).size(), 1u);
}

TEST(Connecting, RefusesAnswersOfSomebodyElse) {
  const auto other = Listener();
  ListenerInfo wanted = other->info();
  wanted.nonce += 1;  // of a rank that is gone, or on another machine with that address
  Connecting connecting(WaysTo(wanted, wanted), wanted, {.nonce = wanted.nonce, .channel = 0, .from = 0});
  const std::string message(Finish(connecting, other.get()).message());
  EXPECT_THAT(message, HasSubstr("cannot be reached: 127.0.0.1 port " + std::to_string(wanted.port)));
  EXPECT_THAT(message, HasSubstr("another process"));
  EXPECT_TRUE(other->Take(0).empty());
}

TEST(Connecting, RefusesAnswersThatOnlyRepeatWhatItSaid) {
  const auto listener = Listener();
  ListenerInfo wanted = listener->info();
  wanted.answer = wanted.nonce + 1;  // so that the listener, which answers otherwise, is a stranger
  Connecting connecting(WaysTo(wanted, wanted), wanted, {.nonce = wanted.nonce, .channel = 0, .from = 0});
  EXPECT_THAT(std::string(Finish(connecting, listener.get()).message()), HasSubstr("another process answers there"));
  EXPECT_NE(listener->info().answer, listener->info().nonce);
}

TEST(Connecting, TriesOneWayAfterTheOther) {
  const auto listener = Listener();
  ListenerInfo info = listener->info();
  const ListenerInfo::Address good = info.addresses[0];
  // The second address is unused: the network for documentation (RFC 5737).
  const std::vector<ListenerInfo::Address> ways = {V4("127.1.2.3"), good};
  info.port = listener->info().port;
  const ListenerInfo refused = [&] {
    ListenerInfo none = info;
    none.port = 1;
    return none;
  }();
  Connecting lost(ways, refused, {.nonce = info.nonce, .channel = 0, .from = 0});
  const std::string message(Finish(lost, nullptr).message());
  EXPECT_THAT(message, HasSubstr("127.1.2.3 port 1: Connection refused; " + BytesText(good) + " port 1: "));
  Connecting found(ways, info, {.nonce = info.nonce, .channel = 0, .from = 0});
  EXPECT_TRUE(Finish(found, listener.get()).ok());
}

TEST(Connecting, GivesUpAWayThatDoesNotAnswer) {
  const auto listener = Listener();
  const ListenerInfo info = listener->info();
  Connecting connecting(WaysTo(info, info), info, {.nonce = info.nonce, .channel = 0, .from = 0});
  const absl::Duration begin = SteadyNow();
  const std::string message(Finish(connecting, nullptr).message());  // the kernel connects, but Accept is not called
  EXPECT_THAT(message, HasSubstr("no answer"));
  EXPECT_LT(SteadyNow() - begin, absl::Seconds(9));
}

TEST(SocketListener, IgnoresWhoSaysSomethingElseOrNothing) {
  const auto listener = Listener();
  listener->Open(0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(listener->info().port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<Descriptor> strangers;
  for (const char* greeting : {"GET / HTTP/1.1\r\n\r\n", "", "x"}) {
    strangers.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(strangers.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(write(strangers.back().get(), greeting, std::strlen(greeting)),
              static_cast<ssize_t>(std::strlen(greeting)));
  }
  EXPECT_TRUE(ConnectTo(*listener).ok());
  EXPECT_EQ(listener->Take(0).size(), 1u);
  EXPECT_TRUE(IsReadable(strangers[0].get())) << "it is told by a closed connection";
  // A connection without a complete greeting after some seconds is closed.
  for (const size_t silent : {1, 2}) {
    for (int i = 0; i < 200 && !IsReadable(strangers[silent].get(), 50); ++i) listener->Accept();
    EXPECT_TRUE(IsReadable(strangers[silent].get(), 0)) << silent;
  }
}

}  // namespace
}  // namespace lockstep
