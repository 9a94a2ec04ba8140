// The fake NCCL (libnccl.so.2 of this folder, opened and called as NVIDIA's is), for ranks that are threads or
// processes of one host, each with a GPU of the fake driver: its collectives run late, in the order of its caller's
// streams, and are captured with them. As NVIDIA's it makes communicators and launches collectives in threads
// of its own (ncclInProgress), where a stream captures after those of its peers have come, adds in an order of its own,
// and hangs until it is aborted where ranks call different things or a peer is gone. An abort waits until no graph
// holds a collective of the communicator, and then for all that the GPU's streams hold, other communicators' too. What
// it forbids is an error, and misuse that the fake driver tells. Any thread may call it; what this class says is of the
// process alone.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/nccl.h"

namespace lockstep::cuda {

class FakeNccl {
 public:
  // The nth call from now on of `function` ("ncclMemAlloc"), 1 being the next, calls `first`, which calls nothing of
  // NCCL, and returns its result, if that is an error, instead of doing anything. "launch" is called by the thread of a
  // collective, which launches nothing where the result is ncclInProgress.
  virtual void OnCall(std::string_view function, int nth, std::function<ncclResult_t()> first) = 0;
  void FailCall(std::string_view function, int nth, ncclResult_t result) {
    OnCall(function, nth, [result] { return result; });
  }
  // What all communicators say from now on when they are asked for errors, until this is called with ncclSuccess.
  virtual void SetAsyncError(ncclResult_t result) = 0;
  // Whether ranks may share a GPU, as later ones let them where the user asks. At first they may not.
  virtual void LetRanksShareGpus(bool may) = 0;
  // Each call since the last time that this was called, in order: "ncclAllReduce 1000 f32 sum of 3 ranks".
  virtual std::vector<std::string> TakeCalls() = 0;
  // Communicators that are neither destroyed nor aborted.
  virtual int live() const = 0;

 protected:
  ~FakeNccl() = default;
};

// The symbol of the one that a library has.
using GetFakeNccl = FakeNccl* (*)();
inline constexpr char kGetFakeNccl[] = "lockstep_fake_nccl";

}  // namespace lockstep::cuda
