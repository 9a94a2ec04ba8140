// The fake NCCL (libnccl.so.2 of this folder, opened and called like NVIDIA's), for ranks that are threads or processes
// of one host, each with a GPU of the fake driver. Its collectives run late, in the order of the caller's streams, and
// are captured with them. Like NVIDIA's, it creates communicators and launches collectives in separate threads
// (ncclInProgress); a captured collective waits there until its peers have captured theirs. It adds in an order of its
// own. If ranks call different collectives or a peer is gone, it hangs until it is aborted. Graphs with collectives of
// a communicator must be destroyed before it is aborted. An abort waits for their launches and for open captures, and
// then for all work in the GPU's streams, that of other communicators too. Forbidden calls return an error and are
// misuse of the fake driver. Any thread may call it. This class covers only the calls of its own process.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/nccl.h"

namespace lockstep::cuda {

class FakeNccl {
 public:
  // In the nth call from now on of `function` ("ncclMemAlloc"; the next call is 1), calls `first`, which must not call
  // NCCL. If `first` returns an error, the call returns it and does nothing else. The thread of a collective calls
  // "launch"; it launches nothing if the result is ncclInProgress.
  virtual void OnCall(std::string_view function, int nth, std::function<ncclResult_t()> first) = 0;
  void FailCall(std::string_view function, int nth, ncclResult_t result) {
    OnCall(function, nth, [result] { return result; });
  }
  // Sets the asynchronous error of all communicators, until this is called with ncclSuccess.
  virtual void SetAsyncError(ncclResult_t result) = 0;
  // Allows ranks to share a GPU, as newer versions do on request. At first it is not allowed.
  virtual void LetRanksShareGpus(bool may) = 0;
  // false: ncclCommRegister succeeds, registers nothing, and returns no handle, as with NCCL_LOCAL_REGISTER=0.
  virtual void LetBuffersBeRegistered(bool may) = 0;
  // The calls since the last call of this function, in order: "ncclAllReduce 1000 f32 sum of 3 ranks".
  virtual std::vector<std::string> TakeCalls() = 0;
  // The number of communicators that are neither destroyed nor aborted.
  virtual int live() const = 0;

 protected:
  ~FakeNccl() = default;
};

// The symbol by which a library returns its FakeNccl.
using GetFakeNccl = FakeNccl* (*)();
inline constexpr char kGetFakeNccl[] = "lockstep_fake_nccl";

}  // namespace lockstep::cuda
