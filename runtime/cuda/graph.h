// A CUDA graph that can be launched, and that any thread may drop. NCCL's communicators whose collectives it holds know
// it: the end of such a communicator waits until the graph is gone (nccl_communicator.h).

#pragma once

#include <mutex>

#include "absl/status/status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

class LaunchableGraph {
 public:
  // The device outlives it, unless it has been dropped.
  explicit LaunchableGraph(CudaDevice& device) : device_(device) {}
  ~LaunchableGraph() { Drop(); }
  LaunchableGraph(const LaunchableGraph&) = delete;
  LaunchableGraph& operator=(const LaunchableGraph&) = delete;

  // Once, of what was captured, which remains the caller's. Fails after Drop, as Launch does. Both in the thread that
  // uses the device.
  absl::Status Instantiate(CUgraph captured);
  absl::Status Launch(CUstream stream);
  // Launches that are under way run to their end. The calling thread's context is then that of the device. Also where
  // the context is broken: what then goes is up to the driver.
  void Drop();

 private:
  CudaDevice& device_;
  std::mutex mutex_;  // guards what follows
  CUgraphExec executable_ = nullptr;
  bool dropped_ = false;
};

}  // namespace lockstep::cuda
