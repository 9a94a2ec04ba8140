// What carries data between groups of ranks that share no memory: messages from rank to rank, all of them nonblocking.
// Each rank has its own Links, used by its progress thread alone. Implementations: TCP (socket_links.h) and MPI
// (mpi_links.h).

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

// The bytes of a message, which nobody clears first.
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

// What a message is sent from or received into. Shared because a transport may read or write it after everybody has
// given up.
using MessageBuffer = std::shared_ptr<MessageBytes>;

// A send or a receive in flight. Destroying one that is not complete gives it up; the transport keeps the buffer until
// it is done with it.
class LinkRequest {
 public:
  virtual ~LinkRequest() = default;
  // Whether it is complete: the buffer may be used again, or has been filled. Not to be called again after that.
  // kOutOfRange: what has come is not of the buffer's size.
  virtual absl::StatusOr<bool> Test() = 0;
};

class Links {
 public:
  virtual ~Links() = default;

  // Messages from one rank to another with the same tag arrive in the order in which they were sent. They leave at the
  // next Progress, those for one rank together. Tags are below 2^15.
  virtual absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, MessageBuffer buffer) = 0;
  // A message of the buffer's size; kOutOfRange if one of another size is there already.
  virtual absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, MessageBuffer buffer) = 0;

  // What ranks of different groups tell each other besides data.
  struct Notice {
    enum class Kind : int32_t {
      kFailed,    // the world has failed; `rank` is to blame
      kLeft,      // all ranks of the sender's group are done and gone
      kQuestion,  // for whom do you wait?
      kAnswer,    // for `rank`, or for nobody (-1)
    };
    Kind kind = Kind::kFailed;
    int rank = -1;
    int from = -1;        // the sender; filled in by the links
    absl::Status status;  // of kFailed
  };
  // Moves what can be moved. If that is nothing, returns when something can, after `limit`, or earlier for no reason;
  // whoever has looked in vain for what it waits for calls this and looks again.
  virtual void Progress(absl::Duration limit) = 0;

  // Why nothing will come from or reach a rank any more, as its connection says; OK as long as nothing is known. Not
  // all links know.
  virtual absl::Status Lost(int rank) const = 0;

  // Does not wait.
  virtual void SendNotice(int to_rank, const Notice& notice) = 0;
  // A notice that has come, if there is one.
  virtual std::optional<Notice> PollNotice() = 0;

  // Links between some of the ranks, which get new numbers: rank r of the new ones is `ranks[r]` of these. `channel`
  // (below 2^16) keeps their messages from all others'. May be used by another thread, and outlive these.
  virtual absl::StatusOr<std::unique_ptr<Links>> Among(const std::vector<int>& ranks, uint32_t channel,
                                                       std::vector<int> group_begins) const = 0;

  // The first rank of each group, ascending; the first is 0.
  virtual const std::vector<int>& group_begins() const = 0;
};

}  // namespace lockstep
