#include "runtime/server/message.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "core/status.h"

namespace lockstep {
namespace {

// Larger than any message: a header with more is damaged.
constexpr uint64_t kMostText = uint64_t{1} << 28, kMostBytes = uint64_t{1} << 40;

bool WouldWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

absl::Status Closed(int error) {
  return absl::UnavailableError(error == 0 ? "its connection is closed"
                                           : std::string("its connection is lost: ") + std::strerror(error));
}

}  // namespace

Message ErrorReply(const absl::Status& status) {
  Message reply;
  reply.code = status.code();
  reply.text = std::string(status.message());
  return reply;
}

absl::Status StatusOf(const Message& reply) {
  if (reply.code == absl::StatusCode::kOk) return absl::OkStatus();
  return absl::Status(reply.code, reply.text);
}

// For each worker: its rank, the number of bytes, and the bytes.
std::string EncodeTexts(const std::map<int, std::string>& texts) {
  std::string encoded;
  for (const auto& [rank, text] : texts)
    encoded += std::to_string(rank) + ' ' + std::to_string(text.size()) + '\n' + text;
  return encoded;
}

absl::StatusOr<std::map<int, std::string>> DecodeTexts(std::string_view encoded) {
  std::map<int, std::string> texts;
  while (!encoded.empty()) {
    const size_t line = encoded.find('\n');
    std::istringstream numbers{std::string(encoded.substr(0, line))};
    int rank = 0;
    size_t bytes = 0;
    if (line == encoded.npos || !(numbers >> rank >> bytes) || bytes > encoded.size() - line - 1)
      return Internal() << "the texts of the workers are damaged";
    texts[rank] = std::string(encoded.substr(line + 1, bytes));
    encoded.remove_prefix(line + 1 + bytes);
  }
  return texts;
}

void MessageConnection::Post(Message message) {
  const Header header{.kind = message.kind,
                      .code = static_cast<int32_t>(message.code),
                      .request = message.request,
                      .version = message.version,
                      .number = message.number,
                      .name_bytes = message.name.size(),
                      .text_bytes = message.text.size(),
                      .bytes = message.bytes.size(),
                      .memory_bytes = message.memory_bytes,
                      .memory = message.memory};
  outgoing_.push_back({header, std::move(message)});
}

absl::Status MessageConnection::Write() {
  while (!outgoing_.empty()) {
    Outgoing& out = outgoing_.front();
    const std::array<std::pair<const void*, size_t>, 4> parts = {
        {{&out.header, sizeof(Header)},
         {out.message.name.data(), out.message.name.size()},
         {out.message.text.data(), out.message.text.size()},
         {out.message.bytes.data(), out.message.bytes.size()}}};
    iovec vectors[4];
    msghdr header{};
    header.msg_iov = vectors;
    size_t skip = out.sent, left = 0;
    for (const auto& [data, bytes] : parts) {
      const size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes == skipped) continue;
      vectors[header.msg_iovlen++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped, bytes - skipped};
      left += bytes - skipped;
    }
    const ssize_t sent = sendmsg(connection_.get(), &header, MSG_NOSIGNAL);
    if (sent < 0 && WouldWait()) return absl::OkStatus();
    if (sent < 0) return Closed(errno);
    out.sent += static_cast<size_t>(sent);
    if (static_cast<size_t>(sent) == left) outgoing_.pop_front();
  }
  return absl::OkStatus();
}

// Returns true if `to` is complete.
absl::StatusOr<bool> MessageConnection::Receive(std::byte* to, size_t bytes, size_t* got, size_t& budget) {
  while (*got < bytes) {
    if (budget == 0) return false;
    const ssize_t received = recv(connection_.get(), to + *got, std::min(bytes - *got, budget), 0);
    if (received < 0 && WouldWait()) return false;
    if (received <= 0) return Closed(received == 0 ? 0 : errno);
    *got += static_cast<size_t>(received);
    budget -= static_cast<size_t>(received);
  }
  return true;
}

absl::StatusOr<std::optional<Message>> MessageConnection::Read(size_t& budget) {
  if (!body_) {
    ASSIGN_OR_RETURN(const bool whole,
                     Receive(reinterpret_cast<std::byte*>(&header_), sizeof(header_), &header_got_, budget));
    if (!whole) return std::nullopt;
    if (header_.name_bytes > kMostText || header_.text_bytes > kMostText || header_.bytes > kMostBytes) {
      return Internal() << "a damaged message: a name of " << header_.name_bytes << " bytes, a text of "
                        << header_.text_bytes << " and a value of " << header_.bytes;
    }
    body_.emplace(header_.name_bytes + header_.text_bytes + header_.bytes);
    body_got_ = 0;
  }
  ASSIGN_OR_RETURN(const bool whole, Receive(body_->data(), body_->size(), &body_got_, budget));
  if (!whole) return std::nullopt;
  Message message;
  message.kind = header_.kind;
  message.code = static_cast<absl::StatusCode>(header_.code);
  message.request = header_.request;
  message.version = header_.version;
  message.number = header_.number;
  message.memory = header_.memory;
  message.memory_bytes = header_.memory_bytes;
  const char* text = reinterpret_cast<const char*>(body_->data());
  message.name.assign(text, header_.name_bytes);
  message.text.assign(text + header_.name_bytes, header_.text_bytes);
  if (header_.name_bytes + header_.text_bytes == 0) {
    message.bytes = *std::move(body_);
  } else if (header_.bytes > 0) {
    message.bytes = MessageBytes(header_.bytes);
    std::memcpy(message.bytes.data(), text + header_.name_bytes + header_.text_bytes, header_.bytes);
  }
  body_.reset();
  header_got_ = 0;
  return message;
}

}  // namespace lockstep
