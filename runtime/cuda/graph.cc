#include "runtime/cuda/graph.h"

#include <utility>

#include "core/status.h"

namespace lockstep::cuda {
namespace {

absl::Status Dropped() { return FailedPrecondition() << "the CUDA graph was dropped with its communicator"; }

}  // namespace

absl::Status LaunchableGraph::EndCapture(CUstream stream, bool keeps) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const DriverApi& api = device_.api();
  CUgraph captured = nullptr;
  absl::Status status = device_.Check(api.StreamEndCapture(stream, &captured), "cuStreamEndCapture");
  if (dropped_) status = Dropped();
  if (status.ok() && keeps) {
    CUgraphExec executable = nullptr;
    status = device_.Check(api.GraphInstantiateWithFlags(&executable, captured, 0), "cuGraphInstantiateWithFlags");
    if (status.ok()) executable_ = executable;
  }
  if (captured != nullptr) (void)api.GraphDestroy(captured);
  return status;
}

absl::Status LaunchableGraph::Launch(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (dropped_) return Dropped();
  return device_.Check(device_.api().GraphLaunch(executable_, stream), "cuGraphLaunch");
}

void LaunchableGraph::Drop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  dropped_ = true;
  if (executable_ == nullptr) return;
  (void)device_.api().CtxSetCurrent(device_.context());
  (void)device_.api().GraphExecDestroy(std::exchange(executable_, nullptr));
}

}  // namespace lockstep::cuda
