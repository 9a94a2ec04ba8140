// Messages between ranks of groups that share no memory. All calls are nonblocking. Each rank has its own Links, which
// only its progress thread uses. Implementations: TCP (socket_links.h) and MPI (mpi_links.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep {

// The bytes of a message, not initialised.
class MessageBytes {
 public:
  explicit MessageBytes(size_t size) : bytes_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  std::byte* data() { return bytes_.get(); }
  const std::byte* data() const { return bytes_.get(); }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_;
};

// The buffer of a message. Shared because a transport may read or write it after the callers have given up.
using MessageBuffer = std::shared_ptr<MessageBytes>;

// A send or a receive in flight. Destroying an incomplete one abandons it. The transport keeps the buffer until it no
// longer uses it.
class LinkRequest {
 public:
  virtual ~LinkRequest() = default;
  // Returns true if the request is complete: the buffer may be reused, or has been filled. Do not call it again after
  // that. kOutOfRange: the received message has another size than the buffer.
  virtual absl::StatusOr<bool> Test() = 0;
};

class Links {
 public:
  virtual ~Links() = default;

  // Sends a message. Messages from one rank to another with the same tag arrive in the order of sending. They leave at
  // the next Progress; those for one rank leave together. Tags are below 2^15.
  virtual absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, MessageBuffer buffer) = 0;
  // Receives a message of the buffer's size. kOutOfRange if a message of another size is present already.
  virtual absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, MessageBuffer buffer) = 0;

  // Messages between ranks of different groups besides data.
  struct Notice {
    enum class Kind : int32_t {
      kFailed,    // the world has failed; `rank` is to blame
      kLeft,      // all ranks of the sender's group have left
      kQuestion,  // for whom do you wait?
      kAnswer,    // for `rank`, or for no one (-1)
    };
    Kind kind = Kind::kFailed;
    int rank = -1;
    int from = -1;        // the sender; filled in by the links
    absl::Status status;  // for kFailed
  };
  // Moves all data that can be moved. If there is none, returns when there is some, after `limit`, or earlier without a
  // reason. A waiting caller checks its condition, calls this, and checks again.
  virtual void Progress(absl::Duration limit) = 0;
  // Makes Progress, called by another thread, return soon. Any thread. Links whose Progress waits for a moment at most
  // need not do anything.
  virtual void Wake() {}

  // Returns the reason for which a rank can no longer be reached, according to its connection; OK if none is known. Not
  // all links know it.
  virtual absl::Status Lost(int rank) const = 0;

  // Does not wait.
  virtual void SendNotice(int to_rank, const Notice& notice) = 0;
  // Returns a received notice, if there is one.
  virtual std::optional<Notice> PollNotice() = 0;

  // Returns links between some of the ranks, with new numbers: rank r is `ranks[r]` of these links. `channel` (below
  // 2^16) separates their messages from all others. Another thread may use them, and they may outlive these links.
  virtual absl::StatusOr<std::unique_ptr<Links>> Among(const std::vector<int>& ranks, uint32_t channel,
                                                       std::vector<int> group_begins) const = 0;

  // The first rank of each group, ascending from 0.
  virtual const std::vector<int>& group_begins() const = 0;
};

}  // namespace lockstep
