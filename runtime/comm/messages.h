// Messages between two ranks, besides the collectives of their communicator: bytes with a tag, for which the receiver
// asks by sender and tag. The rules of matching are those of MPI's point-to-point messages (MPI 4.1, chapter 3.5). They
// travel over TCP, also between ranks of one host. A thread moves them, so that they arrive while their sender computes
// or waits in a collective. It begins with the first message, and sleeps while none is in flight. Any thread may call.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/communicator.h"

namespace lockstep {

class Messages {
 public:
  // As a sender: any rank.
  static constexpr int kAnyRank = -1;

  // Returns this rank's end. Collective over the ranks of `world`, which is not needed afterwards.
  static absl::StatusOr<std::unique_ptr<Messages>> Create(Communicator& world);

  // Messages whose sending was not waited for are sent for 200 ms more. In a forked process it does nothing.
  virtual ~Messages() = default;

  // A message in flight. A plain value. Wait for each ticket until Wait returns something else than DeadlineExceeded.
  struct Ticket {
    uint64_t id = 0;
  };

  // Starts to send a copy of the bytes. Messages from one rank to another with the same tag arrive in the order of
  // sending. `to` is another rank.
  virtual Ticket Send(int to, int64_t tag, std::span<const std::byte> bytes) = 0;

  // Starts to receive the first message with this tag from rank `from`, or from any rank, that no earlier call
  // receives. Until Wait has returned, the memory belongs to this object. It is not written any more after its
  // destruction.
  virtual Ticket Receive(int from, int64_t tag, std::span<std::byte> into) = 0;

  // Waits until the message is sent, so that it arrives even if this rank leaves, or received. Returns the other rank.
  // Errors: DeadlineExceeded after `limit`, when the message is still in flight. OutOfRange if the message has another
  // size than the memory, which is not written then; the message is lost. Unavailable if the other rank has left, or
  // cannot be reached. The messages name that rank and its host.
  virtual absl::StatusOr<int> Wait(Ticket ticket, absl::Duration limit) = 0;
};

}  // namespace lockstep
