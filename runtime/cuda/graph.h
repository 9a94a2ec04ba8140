// A CUDA graph that can be launched, and that any thread may drop. NCCL communicators know the graphs with their
// collectives, and drop them before they end (nccl_communicator.h).

#pragma once

#include <mutex>

#include "absl/status/status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

class LaunchableGraph {
 public:
  // The device must outlive this object, unless the graph has been dropped.
  explicit LaunchableGraph(CudaDevice& device) : device_(device) {}
  ~LaunchableGraph() { Drop(); }
  LaunchableGraph(const LaunchableGraph&) = delete;
  LaunchableGraph& operator=(const LaunchableGraph&) = delete;

  // Ends the capture of the stream and, if `keeps`, makes the graph from it; call it once. EndCapture and Launch fail
  // after Drop. The thread that uses the device calls both.
  absl::Status EndCapture(CUstream stream, bool keeps);
  absl::Status Launch(CUstream stream);
  // Destroys the graph, so that nothing that was captured is left except running launches, which continue to their end.
  // Makes the device's context current in the calling thread. May be called with a broken context; then the driver
  // decides how much is freed.
  void Drop();

 private:
  CudaDevice& device_;
  std::mutex mutex_;  // guards the following members
  CUgraphExec executable_ = nullptr;
  bool dropped_ = false;
};

}  // namespace lockstep::cuda
