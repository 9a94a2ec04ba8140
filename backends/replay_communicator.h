// A communicator with which one rank computes another one's part of a step again: collectives move no data, but give
// out what they gave in the other rank's run. Made by HardwareCheck (hardware_check.h).

#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/communicator.h"

namespace lockstep {

// The outputs of the collectives of one run, in the order of their starts.
using CollectiveOutputs = std::deque<std::vector<std::byte>>;

class ReplayCommunicator final : public Communicator {
 public:
  // In it, rank r of `world` is rank r - shift, modulo their number. All ranks make it with the same shift. Starts take
  // their outputs from the beginning of `outputs`. Both must outlive the object. What ranks compare when a program is
  // loaded is compared in `world`, by all its ranks, and an abort is that of `world`. It cannot share memory.
  ReplayCommunicator(Communicator& world, int shift, CollectiveOutputs& outputs);

  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) override;
  // Internal, if there is no output of this size: the collectives are not those of the run.
  absl::StatusOr<Ticket> Start(const Collective& collective, const void* input, void* output,
                               const Call& call) override;
  absl::Status Wait(Ticket ticket, Stream* stream) override;
  absl::Status Barrier(std::string_view label) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) override;
  absl::Status CheckPeers() override { return world_.CheckPeers(); }
  void Abort(const absl::Status& cause) override { world_.Abort(cause); }

 private:
  // `members` are the ranks of the world, by rank of this communicator.
  ReplayCommunicator(Communicator& world, std::vector<int> members, int rank, CollectiveOutputs& outputs);

  Communicator& world_;
  const std::vector<int> members_;
  CollectiveOutputs& outputs_;
};

}  // namespace lockstep
