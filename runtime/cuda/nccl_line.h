// What the communicators of one GPU share (nccl_communicator.h): the stream in which their collectives run, and how
// they end. ncclCommAbort waits for graphs that hold collectives of its communicator, and in the end for all that the
// GPU's streams hold, other communicators' too. So graphs are dropped first, all communicators of a GPU are aborted
// together when one has failed, and each abort runs in a thread of its own, which is left behind if it does not end.

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

// NCCL's communicator, until it is aborted. Its calls are made one at a time, under the mutex.
class NcclHandle {
 public:
  explicit NcclHandle(const NcclApi& table) : api(table) {}

  // The graph holds collectives of it. Dropped at once if it is aborted already.
  void AddGraph(const std::shared_ptr<LaunchableGraph>& graph);

  // Drops the graphs and begins to end what is in flight; returns at once. Any thread.
  void Abort();
  bool aborted();
  // Whether an abort that was begun has ended, at the latest by then.
  bool AwaitEnd(std::chrono::steady_clock::time_point until);
  // Until it has, collectives may touch their operands.
  bool is_ending() { return !AwaitEnd({}); }

  const NcclApi& api;
  std::mutex mutex;  // guards what follows
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

class NcclLine {
 public:
  static absl::StatusOr<std::shared_ptr<NcclLine>> Create(CudaDevice& device);
  NcclLine(CudaDevice& device, CUstream stream);
  ~NcclLine();
  NcclLine(const NcclLine&) = delete;
  NcclLine& operator=(const NcclLine&) = delete;

  CUstream stream() const { return stream_; }

  void Add(const std::shared_ptr<NcclHandle>& handle);
  // Of all that were added. Any thread.
  void AbortAll();

  // Waits until it and the device's stream hold nothing, or `go_on` says no, for ten seconds at most. Once that has not
  // been enough it does not wait any more.
  bool AwaitIdle(const std::function<bool()>& go_on);
  // The same for the end of an abort. Says on stderr that it is left behind.
  bool AwaitEnd(NcclHandle& handle);

 private:
  bool IsEnding();

  CudaDevice& device_;
  const CUstream stream_;
  std::atomic<bool> stuck_{false}, left_behind_{false};  // a wait for it was too short
  std::mutex mutex_;                                     // guards what follows
  std::vector<std::weak_ptr<NcclHandle>> handles_;
  uint64_t holder_ = 0;
};

}  // namespace lockstep::cuda
