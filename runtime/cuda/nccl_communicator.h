// The communicator of GPUs over NCCL (nccl.h), each rank with one of its own. What NCCL does not do goes over a
// communicator of the hosts, of the same ranks: the unique id, Barrier, AllGatherBytes, what a call says (op, dtype,
// count, label, evidence), who has died and who is late. So an error names its culprit as between CPUs.
//
// A start compares its call with the peers' by a collective of the hosts that moves nothing, and puts NCCL's into a
// stream of its own, after what the caller's stream holds. Wait returns when the peers' hosts have started theirs and
// agree: a stream gets nothing that uses a result on which ranks disagree. The stream itself never waits for a host.
// It costs the host a message in shared memory each, and a start some ten microseconds more until a thread of NCCL's
// has launched the collective: its communicator does not block, so that it can be aborted. A wait is for the slowest
// host, not for a GPU; a start waits for peers only where NCCL does, to connect them, or to register memory in a
// capture.
//
// When one fails all communicators of its GPU that come of the same world are aborted, in threads of their own
// (nccl_line.h): no call waits for that but the end of the communicator and of its memory, for ten seconds at most.
//
// After an error operands may be freed at once, as with any communicator: the device keeps its memory until the abort
// has ended.
//
// A rank whose device, or NCCL, has waited for the timeout meets the peers that have, too, in a barrier of the hosts,
// which names whoever is not there: after twice the timeout, then.
//
// What differs from runtime/communicator.h:
//  * The order of additions is NCCL's: equal on all ranks, and in every run on the same machines, but not of the ranks.
//    f16 and bf16 are rounded at each addition. A mean of floats multiplies by 1 / size() first.
//  * A NaN need not be the min and the max, nor -0 the min of it and 0.
//  * Sums, products, min and max of i16 and u16, and means of integers of less than 64 bits, are Unimplemented: nothing
//    was started, on no rank.
//  * Several pieces, and what goes from one rank to one rank, are calls of NCCL's in a group.
//  * A collective of hosts that still compute blocks a start once 64 of them are in flight.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/graph.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/nccl_line.h"
#include "runtime/cuda/nccl_types.h"

namespace lockstep::cuda {

class NcclCommunicator final : public Communicator {
 public:
  // This rank's end, of the same ranks as `host`, which all call it. The table, `host` and `device` outlive it, and
  // nobody else calls `host` meanwhile but for Abort() and CheckPeers(). Its memory, too, is gone before the device.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(const NcclApi& api, Communicator& host,
                                                                  CudaDevice& device);
  // Waits for collectives that were waited for, unless a peer fails.
  ~NcclCommunicator() override;

  // Of NCCL, and registered with it; where that is not supported, as the device's other memory.
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) override;
  absl::StatusOr<Ticket> Start(const Collective& collective, const void* input, void* output,
                               const Call& call) override;
  absl::Status Wait(Ticket ticket, Stream* stream) override;
  absl::Status Barrier(std::string_view label) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) override;
  // Parts share the stream, so that a GPU has the collectives of all of them in one order.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) override;
  absl::Status CheckPeers() override;
  void Abort(const absl::Status& cause) override;

  // While the device's stream is captured a call is not compared: whoever launches the graph compares it as a whole
  // (Call::compared_only). Before the capture: this is the graph that will be made of it. It is dropped when the
  // communicator ends, as NCCL would wait for it.
  void AddGraph(const std::shared_ptr<LaunchableGraph>& graph);
  // After it, also if it failed: forgets what was started in it and not waited for.
  void DropCaptured();

 private:
  class Memory;
  struct Flight {
    Ticket of_host;
    CUevent done = nullptr;  // null: there is nothing on the device
    bool captured = false;   // then nothing is compared, so that a capture that fails concerns no peer
  };
  NcclCommunicator(const NcclApi& api, std::unique_ptr<Communicator> part, Communicator& host, CudaDevice& device,
                   std::shared_ptr<NcclLine> line);
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> CreateOn(const NcclApi& api,
                                                                    std::unique_ptr<Communicator> part,
                                                                    Communicator& host, CudaDevice& device,
                                                                    std::shared_ptr<NcclLine> line);
  absl::Status Join();
  absl::Status JoinAs(const ncclUniqueId& id);
  absl::Status AwaitReady(std::string_view what);
  absl::Status StartOnDevice(absl::FunctionRef<ncclResult_t(ncclComm_t)> enqueue, std::string_view what, CUevent done);
  // Puts the collective into the line's stream; `reduction` counts if it reduces. NCCL's result.
  ncclResult_t Enqueue(const Collective& collective, const NcclReduction& reduction, const void* input, void* output,
                       ncclComm_t comm);
  // Fills the output with zeros, as part of Enqueue.
  ncclResult_t Clear(void* output, size_t bytes);
  absl::StatusOr<CUevent> TakeEvent();
  absl::StatusOr<bool> Captures();
  absl::Status Watch(absl::Duration waited);
  absl::Status CheckNccl();
  absl::Status Late(std::string_view what);
  absl::Status Failed(const absl::Status& status);

  const std::unique_ptr<Communicator> own_;  // the hosts', if this is a part
  Communicator& host_;
  CudaDevice& device_;
  // Shared: parts may outlive the communicator that they come from, and memory both.
  const std::shared_ptr<NcclLine> line_;
  const std::shared_ptr<NcclHandle> nccl_;
  CUevent computed_ = nullptr;  // what the line waits for
  std::vector<CUevent> idle_;
  std::map<uint64_t, Flight> flying_;  // by ticket
  uint64_t next_ticket_ = 0;
  uint64_t watch_ = 0;
};

}  // namespace lockstep::cuda
