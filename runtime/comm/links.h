// What carries data between groups of ranks that share no memory: messages from rank to rank, all of them nonblocking. Each
// rank has its own Links, used by its progress thread alone. Implementations: MPI (mpi_links.h), and mailboxes between threads
// (in_process_links.h), with which tests run several groups in one process.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// A send or a receive in flight. Destroying one that is not complete cancels it as far as possible; its buffer must live on
// until Links itself is gone if it was a send.
class LinkRequest {
 public:
  virtual ~LinkRequest() = default;
  // Whether it is complete: the buffer may be used again, or has been filled.
  virtual absl::StatusOr<bool> Test() = 0;
};

class Links {
 public:
  virtual ~Links() = default;

  // Messages from one rank to another with the same tag arrive in the order in which they were sent. Tags are below 2^15.
  virtual absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, const std::byte* data,
                                                            size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, std::byte* data,
                                                               size_t bytes) = 0;

  // Something that all other groups should know: that the world has failed, or that a whole group is done and gone.
  struct Notice {
    int rank = 0;         // the culprit, or the first rank of the group that has left
    absl::Status status;  // OK: the group has left
  };
  // Tells the first ranks of all other groups; does not wait.
  virtual void SendNotice(const Notice& notice) = 0;
  // A notice that has come, if there is one.
  virtual std::optional<Notice> PollNotice() = 0;

  // The first rank of each group, ascending; the first is 0.
  virtual const std::vector<int>& group_begins() const = 0;
};

}  // namespace lockstep
