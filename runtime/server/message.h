// The messages between workers and parameter servers, over one TCP connection for each worker and server. On one host,
// large values are passed by shared memory: the message contains their location in the sender's process. One thread
// uses a MessageConnection, which never waits.

#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/comm/host/control_block.h"
#include "runtime/comm/network/links.h"
#include "runtime/comm/network/sockets.h"

namespace lockstep {

// The prefix of the keys of compiled programs. Keys of stores do not have it.
inline constexpr std::string_view kProgramKeys = "@";

enum class MessageKind : uint32_t {
  // From workers. Each except kRelease and kGoodbye has a reply with the same request number.
  kHello,       // number: the worker's process; name: its host; memory: a segment to try
  kInit,        // name: a key; text: its ArrayInfo; the value
  kFind,        // name: a key. Reply: number 1 and text, its ArrayInfo, or number 0
  kPush,        // name: a key; the gradient
  kPull,        // name: a key; version: the required version; number 1: the reply may contain the value's location
  kPullRanges,  // name: a key; version; bytes: pairs of i64, the first element and their number. Reply: these elements
  kAssign,      // name: a key; its new value
  kRelease,     // request: that of a pull whose memory the worker has read
  kSetUpdate,   // name: a key; text: that of the update (update.h)
  // name: a setting; number: the bits of its value; text: the prefix of the keys. Reply: number: of keys with this
  // setting
  kSet,
  kStates,      // name: a key. Reply: text: the states of its update, two lines each: name, type
  kReadState,   // name: a key; text: the state. Reply: bytes
  kWriteState,  // name: a key; text: the state; bytes
  kExchange,    // text: that of the worker. Reply, after all workers have sent it: text: those of all (EncodeTexts)
  kStaleness,   // reply: text: a line for each staleness, with the number of updates that had it
  kPing,        // number: a request without a reply so far. Reply: text: what the request waits for
  kGoodbye,     // the worker is done; code and text: the reason if it gives up
  // From servers.
  kReply,
  kLost,  // text: the reason for which the job has failed
};

struct Message {
  MessageKind kind = MessageKind::kReply;
  absl::StatusCode code = absl::StatusCode::kOk;  // of a reply; `text` is then its message
  uint64_t request = 0;                           // the number of the worker's request; a reply has the same
  int64_t version = 0;
  int64_t number = 0;
  std::string name, text;
  MessageBytes bytes{0};
  // Instead of `bytes`, the location of the value in the sender's process.
  MemoryRef memory = {};
  uint64_t memory_bytes = 0;
};

Message ErrorReply(const absl::Status& status);
// Returns the status of a reply.
absl::Status StatusOf(const Message& reply);

// Encode the texts of workers, by worker, as one text; and decode them.
std::string EncodeTexts(const std::map<int, std::string>& texts);
absl::StatusOr<std::map<int, std::string>> DecodeTexts(std::string_view encoded);

class MessageConnection {
 public:
  explicit MessageConnection(Descriptor connection) : connection_(std::move(connection)) {}

  int descriptor() const { return connection_.get(); }

  // Queues a message. It leaves with the next Write.
  void Post(Message message);
  // Sends as much as the kernel accepts. An error, here and below, means that the peer is gone.
  absl::Status Write();
  bool has_more_to_write() const { return !outgoing_.empty(); }
  // Returns the next message if it has arrived completely. Reads at most `budget` bytes from the kernel and subtracts
  // them from it, so that one connection cannot delay the others of a server.
  absl::StatusOr<std::optional<Message>> Read(size_t& budget);
  absl::StatusOr<std::optional<Message>> Read() {
    size_t all = std::numeric_limits<size_t>::max();
    return Read(all);
  }

 private:
  // The header of a message. Its texts and bytes follow.
  struct Header {
    MessageKind kind = {};
    int32_t code = 0;
    uint64_t request = 0;
    int64_t version = 0, number = 0;
    uint64_t name_bytes = 0, text_bytes = 0, bytes = 0;
    uint64_t memory_bytes = 0;
    MemoryRef memory = {};
  };
  struct Outgoing {
    Header header;
    Message message;
    size_t sent = 0;  // of the header and everything after it
  };
  absl::StatusOr<bool> Receive(std::byte* to, size_t bytes, size_t* got, size_t& budget);

  Descriptor connection_;
  std::deque<Outgoing> outgoing_;
  Header header_;  // of the message that is being read
  size_t header_got_ = 0;
  std::optional<MessageBytes> body_;
  size_t body_got_ = 0;
};

}  // namespace lockstep
