// The state that the communicators of one GPU share (nccl_communicator.h): the stream of their collectives, and the
// aborts at their end. ncclCommAbort must not come before the end of a graph with collectives of its communicator: it
// waits for the graph, or the graph's end uses what it has freed. It also waits for all work in the GPU's streams,
// including that of other communicators. So graphs are dropped first, all communicators of a GPU are aborted together
// after a failure, and each abort runs in its own thread, which is abandoned if it does not end. A capture that is open
// is the exception: NCCL may wait for peers in it, which only an abort ends. The abort then waits for the capture's
// end.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/graph.h"
#include "runtime/cuda/nccl.h"

namespace lockstep::cuda {

// An NCCL communicator, until it is aborted. The mutex serialises its calls.
class NcclHandle {
 public:
  explicit NcclHandle(const NcclApi& table) : api(table) {}

  // Records a graph with collectives of this communicator. Drops the graph at once if the communicator is aborted.
  void AddGraph(const std::shared_ptr<LaunchableGraph>& graph);

  // Drops the graphs, then starts to abort the collectives in flight, and returns. Any thread.
  void Abort();
  bool aborted();
  // Waits for the end of a started abort. Returns false if it has not ended at the time `until`.
  bool AwaitEnd(std::chrono::steady_clock::time_point until);
  // Collectives may touch their operands while this is true.
  bool is_ending() { return !AwaitEnd({}); }

  const NcclApi& api;
  std::mutex mutex;  // guards the following members
  ncclComm_t comm = nullptr;

 private:
  // Shared with the thread of the abort.
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
  };
  std::shared_ptr<End> end_;  // null: not aborted
  std::vector<std::weak_ptr<LaunchableGraph>> graphs_;
};

class NcclStream {
 public:
  static absl::StatusOr<std::shared_ptr<NcclStream>> Create(CudaDevice& device);
  NcclStream(CudaDevice& device, CUstream stream);
  ~NcclStream();
  NcclStream(const NcclStream&) = delete;
  NcclStream& operator=(const NcclStream&) = delete;

  CUstream stream() const { return stream_; }

  void Add(const std::shared_ptr<NcclHandle>& handle);
  // Aborts all added handles. Any thread.
  void AbortAll();

  // Waits until it and the device's stream are idle, or `go_on` returns false, for ten seconds at most. After one such
  // wait was too short, later calls do not wait.
  bool AwaitIdle(const std::function<bool()>& go_on);
  // The same for the end of an abort. Reports on stderr that the abort is abandoned.
  bool AwaitEnd(NcclHandle& handle);

 private:
  bool IsEnding();

  CudaDevice& device_;
  const CUstream stream_;
  std::atomic<bool> stuck_{false}, left_behind_{false};  // a wait was too short
  std::mutex mutex_;                                     // guards the following members
  std::vector<std::weak_ptr<NcclHandle>> handles_;
  uint64_t holder_ = 0;
};

}  // namespace lockstep::cuda
