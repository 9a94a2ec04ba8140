#include "runtime/cuda/graph.h"

#include <utility>

#include "core/status.h"

namespace lockstep::cuda {
namespace {

absl::Status Dropped() { return FailedPrecondition() << "the CUDA graph was dropped with its communicator"; }

}  // namespace

absl::Status LaunchableGraph::Instantiate(CUgraph captured) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (dropped_) return Dropped();
  CUgraphExec executable = nullptr;
  RETURN_IF_ERROR(
      device_.Check(device_.api().GraphInstantiateWithFlags(&executable, captured, 0), "cuGraphInstantiateWithFlags"));
  executable_ = executable;
  return absl::OkStatus();
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
