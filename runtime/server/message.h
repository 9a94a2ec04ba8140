// What workers and parameter servers say to each other: messages over one TCP connection for each worker and server.
// Large values travel beside them where both are on one host: the message says where in its sender's memory they lie.
// A MessageConnection is used by one thread, and never waits.

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

// What the keys of compiled programs begin with, and those of stores do not.
inline constexpr std::string_view kProgramKeys = "@";

enum class MessageKind : uint32_t {
  // Of workers. Each but kRelease and kGoodbye has a reply of the same request.
  kHello,       // number: its process; name: its host; memory: a segment to try
  kInit,        // name: a key; text: its ArrayInfo; the value
  kFind,        // name: a key. Reply: number 1 and text, its ArrayInfo, or number 0
  kPush,        // name: a key; the gradient
  kPull,        // name: a key; version: that it must have; number 1: the reply may say where the value lies
  kPullRanges,  // name: a key; version; bytes: pairs of i64, the first element and how many. Reply: these
  kAssign,      // name: a key; the value that it has from now on
  kRelease,     // request: of a pull, whose memory the worker has read
  kSetUpdate,   // name: a key; text: of the update (update.h)
  kSet,         // name: a setting; number: the bits of its value; text: how keys begin that get it. Reply: number: of
                // keys that have it
  kStates,      // name: a key. Reply: text: what its update keeps, a line each: name, type
  kReadState,   // name: a key; text: the state. Reply: bytes
  kWriteState,  // name: a key; text: the state; bytes
  kExchange,    // text: what the worker says. Reply, when all workers have sent it: text: what each said (EncodeTexts)
  kStaleness,   // reply: text: a line for each staleness: it, how many updates had it
  kPing,        // number: a request that has no reply. Reply: text: what it waits for
  kGoodbye,     // the worker is done; code and text: why, if it gives up
  // Of servers.
  kReply,
  kLost,  // text: why the job has failed
};

struct Message {
  MessageKind kind = MessageKind::kReply;
  absl::StatusCode code = absl::StatusCode::kOk;  // of a reply; `text` is then its message
  uint64_t request = 0;                           // of one worker; of a reply that which it is of
  int64_t version = 0;
  int64_t number = 0;
  std::string name, text;
  MessageBytes bytes{0};
  // Or, instead of `bytes`, where they lie in the sender's process.
  MemoryRef memory = {};
  uint64_t memory_bytes = 0;
};

Message ErrorReply(const absl::Status& status);
// The status of a reply.
absl::Status StatusOf(const Message& reply);

// What workers say, by worker, as one text, and back.
std::string EncodeTexts(const std::map<int, std::string>& texts);
absl::StatusOr<std::map<int, std::string>> DecodeTexts(std::string_view encoded);

class MessageConnection {
 public:
  explicit MessageConnection(Descriptor connection) : connection_(std::move(connection)) {}

  int descriptor() const { return connection_.get(); }

  // Puts it behind what is to be sent. It leaves with the next Write.
  void Post(Message message);
  // Sends what the kernel takes at once. An error, here as below: the peer is gone.
  absl::Status Write();
  bool has_more_to_write() const { return !outgoing_.empty(); }
  // The next message that has come, if it has come as a whole. Of what has come no more than `budget` bytes are taken
  // from the kernel, and it is less by those: who has many connections is kept by none.
  absl::StatusOr<std::optional<Message>> Read(size_t& budget);
  absl::StatusOr<std::optional<Message>> Read() {
    size_t all = std::numeric_limits<size_t>::max();
    return Read(all);
  }

 private:
  // What each message begins with; its texts and bytes follow.
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
    size_t sent = 0;  // of the header and all that follows
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
