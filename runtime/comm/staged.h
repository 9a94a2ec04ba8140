// The communicator of a device through the host. A collective copies its operands from the device to pinned memory,
// runs on the host's communicator, and copies its results back, all in the order of the device's stream. It is for
// devices without a communicator of their own (ranks without NCCL, two ranks on one GPU) and for tests. It keeps the
// contract of runtime/communicator.h, with the same bits as on hosts. An error of a queued collective is returned by
// the device's Synchronize(), like every failure in a stream.
//
// A driver may run the host functions of one GPU and process one after the other. Two ranks in such functions would
// then wait for each other for ever. Ranks that are threads and share a GPU therefore run collectives in Start and
// Wait, in their own threads, which synchronize the device first. This is slower, but every rank makes progress.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/device.h"

namespace lockstep {

class StagedCommunicator final : public Communicator {
 public:
  // The place where the host's collectives are called. Ranks may choose differently.
  enum class Runs { kInStream, kInCaller };

  // Creates this rank's end, for the same ranks as `host`. Both must outlive it. No one else may call them meanwhile,
  // except host.Abort() and work for the device's stream. Its transport is that of the host: "shared_memory via host".
  StagedCommunicator(Communicator& host, Device& device, Runs runs = Runs::kInStream);
  ~StagedCommunicator() override;

  // Returns device memory. This communicator treats it like any other.
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) override;
  absl::StatusOr<Ticket> Start(const Collective& collective, const void* input, void* output,
                               const Call& call) override;
  // Queues the wait, or waits. After an error, the contents of the output are undefined.
  absl::Status Wait(Ticket ticket, Stream* stream) override;
  // These four wait until the stream has reached the collectives that were queued before.
  absl::Status Barrier(std::string_view label) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) override;
  absl::Status CheckPeers() override { return host_.CheckPeers(); }
  void Abort(const absl::Status& cause) override { host_.Abort(cause); }

  int splits() const { return splits_; }  // the number of calls of Split

 private:
  struct StartedCollective;
  struct Shared;

  StagedCommunicator(std::unique_ptr<Communicator> part, Device& device, Runs runs);
  absl::StatusOr<std::unique_ptr<DeviceMemory>> TakePinned(size_t bytes, std::string_view label);
  absl::Status Queue(std::function<absl::Status(Shared&)> work);
  absl::Status AwaitQueued();

  // Shared with the functions in the stream, which may outlive this object.
  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Communicator> own_;  // the host's communicator, if Split made this one
  Communicator& host_;
  Device& device_;
  const Runs runs_;
  int splits_ = 0;
  uint64_t next_ticket_ = 0;
  uint64_t queued_ = 0;  // the number of queued functions
};

}  // namespace lockstep
