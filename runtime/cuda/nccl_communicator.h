// The communicator of GPUs over NCCL (nccl.h). Each rank has its own GPU. A communicator of the hosts, with the same
// ranks, does the rest: it sends the unique id, runs Barrier and AllGatherBytes, compares calls (op, dtype, count,
// label, evidence), and detects dead and late ranks. So an error names its culprit as between CPUs.
//
// A start compares its call with those of the peers by a collective of the hosts that moves no data. It puts NCCL's
// collective into a stream of its own, after the present work of the caller's stream. Wait returns when the peers'
// hosts have started theirs and the calls agree: a stream gets no work that uses a result on which ranks disagree. The
// stream itself never waits for a host. The cost is one message in shared memory for each host call, and some ten
// microseconds for a start until a thread of NCCL has launched the collective, because its communicator is nonblocking
// so that it can be aborted. A wait waits for the slowest host, not for a GPU. A start waits for peers only if NCCL
// does: to connect them, or to register memory in a capture.
//
// After a failure, all communicators of its GPU in the same world are aborted, in separate threads (nccl_stream.h).
// Only the destruction of the communicator and of its memory waits for this, for ten seconds at most.
//
// After an error, operands may be freed at once, as with any communicator: the device keeps their memory until the
// abort has ended.
//
// If a rank's device, or NCCL, has waited for the timeout, the rank meets the others in a barrier of the hosts. The
// error of the barrier names the missing rank, so it may come after twice the timeout.
//
// Differences from runtime/communicator.h:
//  * NCCL chooses the order of additions. It is equal on all ranks, and in every run on the same machines, but not the
//    rank order. f16 and bf16 are rounded at each addition. A mean of floats multiplies by 1 / size() first.
//  * A NaN need not be the min and the max, and -0 need not be the min of -0 and 0.
//  * Sums, products, min and max of i16 and u16, and means of integers of less than 64 bits, are Unimplemented: nothing
//    was started, on any rank.
//  * Several pieces, and transfers from one rank to another, are NCCL calls in a group.
//  * A start blocks if 64 collectives are in flight whose peers' hosts have not started them yet.

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
#include "runtime/cuda/nccl_stream.h"
#include "runtime/cuda/nccl_types.h"

namespace lockstep::cuda {

class NcclCommunicator final : public Communicator {
 public:
  // Creates this rank's end, with the same ranks as `host`. All ranks call it. `api`, `host` and `device` must outlive
  // it. No one else may call `host` meanwhile, except Abort() and CheckPeers(). Its memory must be freed before the
  // device is destroyed.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(const NcclApi& api, Communicator& host,
                                                                  CudaDevice& device);
  // Waits for collectives whose Wait was called, unless a peer fails.
  ~NcclCommunicator() override;

  // Allocates with NCCL and registers the memory with it; if NCCL does not support this, allocates ordinary device
  // memory.
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) override;
  absl::StatusOr<Ticket> Start(const Collective& collective, const void* input, void* output,
                               const Call& call) override;
  absl::Status Wait(Ticket ticket, Stream* stream) override;
  absl::Status Barrier(std::string_view label) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) override;
  // The results share this communicator's stream, so that a GPU runs the collectives of all of them in one order.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) override;
  absl::Status CheckPeers() override;
  void Abort(const absl::Status& cause) override;

  // While the device's stream is captured, calls are not compared: the launch of the graph compares it as a whole
  // (Call::compared_only). Call AddGraph before the capture, with the graph that will be made from it. The graph is
  // dropped before the communicator ends, as NCCL demands (nccl_stream.h).
  void AddGraph(const std::shared_ptr<LaunchableGraph>& graph);
  // Call it after the capture, also if that failed. Forgets captured collectives without a Wait.
  void DropCaptured();

 private:
  class Memory;
  struct StartedCollective {
    Ticket of_host;
    CUevent done = nullptr;  // null: there is no work on the device
    bool captured = false;   // then the call is not compared, so that a failed capture does not affect peers
  };
  NcclCommunicator(const NcclApi& api, std::unique_ptr<Communicator> part, Communicator& host, CudaDevice& device,
                   std::shared_ptr<NcclStream> nccl_stream);
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> CreateOn(const NcclApi& api,
                                                                    std::unique_ptr<Communicator> part,
                                                                    Communicator& host, CudaDevice& device,
                                                                    std::shared_ptr<NcclStream> nccl_stream);
  absl::Status Join();
  absl::Status JoinAs(const ncclUniqueId& id);
  absl::Status AwaitReady(std::string_view what);
  absl::Status StartOnDevice(absl::FunctionRef<ncclResult_t(ncclComm_t)> enqueue, std::string_view what, CUevent done);
  // Puts the collective into the line's stream. `reduction` is used if it reduces. Returns NCCL's result.
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

  const std::unique_ptr<Communicator> own_;  // the hosts' communicator, if Split made this one
  Communicator& host_;
  CudaDevice& device_;
  // Shared: split communicators may outlive their parent, and memory may outlive both.
  const std::shared_ptr<NcclStream> nccl_stream_;
  const std::shared_ptr<NcclHandle> nccl_;
  CUevent computed_ = nullptr;  // the line waits for it
  std::vector<CUevent> idle_;
  std::map<uint64_t, StartedCollective> started_;  // by ticket
  uint64_t next_ticket_ = 0;
  uint64_t watch_ = 0;
};

}  // namespace lockstep::cuda
