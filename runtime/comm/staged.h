// The communicator of a device by way of the host: a collective takes its operands from the device into pinned memory,
// runs as one of the hosts' communicator, and puts its results back, all in the order of the device's stream. It is for
// devices that have no communicator of their own (ranks without NCCL, two ranks on one GPU) and for tests. It keeps the
// contract of runtime/communicator.h, with the hosts' bits; what a queued collective meets is an error of the device's
// Synchronize(), as all that fails in a stream.
//
// A driver may run the functions of the host of one GPU and process one after the other, so that of two ranks in such
// functions each would wait for the other for ever. Ranks that are threads and share a GPU therefore run collectives in
// Start and Wait, in their own threads, for which these synchronize the device first: slower, but each rank's turn
// comes.

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
  // Where the hosts' collectives are called. Ranks need not choose alike.
  enum class Runs { kInStream, kInCaller };

  // This rank's end, of the same ranks as `host`. Both outlive it, and nobody else calls them meanwhile but for
  // host.Abort() and what else goes into the device's stream. Its transport is the host's: "shared_memory via host".
  StagedCommunicator(Communicator& host, Device& device, Runs runs = Runs::kInStream);
  ~StagedCommunicator() override;

  // Memory of the device, which is as good as any other to this communicator.
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) override;
  absl::StatusOr<Ticket> Start(const Collective& collective, const void* input, void* output,
                               const Call& call) override;
  // Queues the wait, or waits. Once it has failed the output holds anything.
  absl::Status Wait(Ticket ticket, Stream* stream) override;
  // These four wait until the stream has come to the collectives that were queued before.
  absl::Status Barrier(std::string_view label) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) override;
  absl::Status CheckPeers() override { return host_.CheckPeers(); }
  void Abort(const absl::Status& cause) override { host_.Abort(cause); }

  int splits() const { return splits_; }  // how often Split has been called

 private:
  struct Flight;
  struct Shared;

  StagedCommunicator(std::unique_ptr<Communicator> part, Device& device, Runs runs);
  absl::StatusOr<std::unique_ptr<DeviceMemory>> TakePinned(size_t bytes, std::string_view label);
  absl::Status Queue(std::function<absl::Status(Shared&)> work);
  absl::Status Settle();

  // Shared with the functions in the stream, which may outlive this object.
  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Communicator> own_;  // the host's, if this is a part
  Communicator& host_;
  Device& device_;
  const Runs runs_;
  int splits_ = 0;
  uint64_t next_ticket_ = 0;
  uint64_t queued_ = 0;  // functions
};

}  // namespace lockstep
