// Tests messages over a connection: one by one, in pieces, and damaged.

#include "runtime/server/message.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace lockstep {
namespace {

// Returns two nonblocking ends of a connection.
std::pair<Descriptor, Descriptor> Ends() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Returns all bytes of a message on the wire.
std::string Sent(Message message) {
  auto [from, to] = Ends();
  MessageConnection connection(std::move(from));
  connection.Post(std::move(message));
  EXPECT_TRUE(connection.Write().ok());
  std::string bytes(4096, '\0');
  const ssize_t count = read(to.get(), bytes.data(), bytes.size());
  EXPECT_GT(count, 0);
  bytes.resize(static_cast<size_t>(count));
  return bytes;
}

Message Example() {
  Message message;
  message.kind = MessageKind::kPush;
  message.request = 7;
  message.name = "key";
  message.text = "a text";
  message.bytes = MessageBytes(3);
  std::copy_n("xyz", 3, reinterpret_cast<char*>(message.bytes.data()));
  return message;
}

TEST(Message, ComesInPiecesOfAnySize) {
  const std::string bytes = Sent(Example());
  auto [from, to] = Ends();
  MessageConnection connection(std::move(to));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto early = connection.Read();
    ASSERT_TRUE(early.ok()) << early.status();
    EXPECT_FALSE(early->has_value()) << i;
    ASSERT_EQ(write(from.get(), &bytes[i], 1), 1);
  }
  const auto message = connection.Read();
  ASSERT_TRUE(message.ok()) << message.status();
  ASSERT_TRUE(message->has_value());
  EXPECT_EQ((*message)->kind, MessageKind::kPush);
  EXPECT_EQ((*message)->request, 7u);
  EXPECT_EQ((*message)->name, "key");
  EXPECT_EQ((*message)->text, "a text");
  EXPECT_EQ((*message)->bytes.size(), 3u);
}

// Lengths that are huge, or whose sum overflows 64 bits: no memory is allocated for them, and no missing bytes are
// read.
TEST(Message, DamagedLengthsAreErrors) {
  const std::string bytes = Sent(Example());
  int refused = 0;
  for (size_t at = 0; at + 8 <= bytes.size() - 12; at += 8) {  // the words of the header
    std::string damaged = bytes;
    damaged.replace(at, 8, 8, '\xff');
    auto [from, to] = Ends();
    ASSERT_EQ(write(from.get(), damaged.data(), damaged.size()), static_cast<ssize_t>(damaged.size()));
    MessageConnection connection(std::move(to));
    const auto message = connection.Read();
    if (message.ok()) continue;
    ++refused;
    EXPECT_NE(std::string(message.status().message()).find("a damaged message"), std::string::npos) << message.status();
  }
  EXPECT_EQ(refused, 3);  // of name, text and bytes
}

TEST(Message, IsReadAsFarAsTheBudgetGoes) {
  const std::string bytes = Sent(Example());
  auto [from, to] = Ends();
  MessageConnection connection(std::move(to));
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(write(from.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  size_t budget = bytes.size() + 1;
  EXPECT_TRUE(connection.Read(budget)->has_value());
  EXPECT_EQ(budget, 1u);
  EXPECT_FALSE(connection.Read(budget)->has_value());
  EXPECT_EQ(budget, 0u);
  for (int i = 0; i < 2; ++i) {  // nothing is lost
    const auto message = connection.Read();
    ASSERT_TRUE(message.ok() && message->has_value());
    EXPECT_EQ((*message)->text, "a text");
  }
}

TEST(Message, TextsOfWorkers) {
  const std::map<int, std::string> texts = {{0, "a\nb"}, {3, ""}, {12, "7 7\n"}};
  const std::string encoded = EncodeTexts(texts);
  EXPECT_EQ(*DecodeTexts(encoded), texts);
  EXPECT_TRUE(DecodeTexts("")->empty());
  for (const std::string& damaged : {encoded.substr(0, encoded.size() - 1), encoded + "x", "1 -1\n" + encoded})
    EXPECT_FALSE(DecodeTexts(damaged).ok()) << damaged;
}

}  // namespace
}  // namespace lockstep
