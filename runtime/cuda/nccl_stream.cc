#include "runtime/cuda/nccl_stream.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "core/status.h"

namespace lockstep::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLineRest = std::chrono::microseconds(50);
constexpr auto kLineLastWait = std::chrono::seconds(10);
constexpr int kPriority = -1;  // collectives run before kernels, because peers wait for them

template <typename T>
void Forget(std::vector<std::weak_ptr<T>>& all) {
  std::erase_if(all, [](const std::weak_ptr<T>& each) { return each.expired(); });
}

}  // namespace

// --- One communicator ---------------------------------------------------------------------------------------------

void NcclHandle::AddGraph(const std::shared_ptr<LaunchableGraph>& graph) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    Forget(graphs_);
    graphs_.push_back(graph);
    if (end_ == nullptr) return;
  }
  graph->Drop();
}

void NcclHandle::Abort() {
  std::vector<std::weak_ptr<LaunchableGraph>> graphs;
  std::shared_ptr<End> end;
  ncclComm_t ended = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (comm == nullptr) return;
    graphs = std::exchange(graphs_, {});
    end = end_ = std::make_shared<End>();
    ended = std::exchange(comm, nullptr);
  }
  for (const auto& each : graphs) {
    if (const auto graph = each.lock()) graph->Drop();
  }
  std::thread([end, abort = api.CommAbort, ended] {
    (void)abort(ended);
    const std::lock_guard<std::mutex> reached(end->mutex);
    end->reached = true;
    end->changed.notify_all();
  }).detach();
}

bool NcclHandle::aborted() {
  const std::lock_guard<std::mutex> lock(mutex);
  return end_ != nullptr;
}

bool NcclHandle::AwaitEnd(Clock::time_point until) {
  std::shared_ptr<End> end;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    end = end_;
  }
  if (end == nullptr) return true;
  std::unique_lock<std::mutex> lock(end->mutex);
  return end->changed.wait_until(lock, until, [&] { return end->reached; });
}

// --- All communicators of a GPU -----------------------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<NcclStream>> NcclStream::Create(CudaDevice& device) {
  RETURN_IF_ERROR(device.MakeCurrent());
  CUstream stream = nullptr;
  const DriverApi& api = device.api();
  RETURN_IF_ERROR(device.Check(api.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, kPriority),
                               "cuStreamCreateWithPriority for collectives"));
  return std::make_shared<NcclStream>(device, stream);
}

// After a Wait, the device's stream protects the operands. After a failure, they are kept until the abort has ended.
NcclStream::NcclStream(CudaDevice& device, CUstream stream) : device_(device), stream_(stream) {
  holder_ = device_.AddHolder([this] { return IsEnding(); });
}

NcclStream::~NcclStream() {
  device_.RemoveHolder(holder_);
  if (device_.MakeCurrent().ok()) (void)device_.api().StreamDestroy(stream_);
}

void NcclStream::Add(const std::shared_ptr<NcclHandle>& handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Forget(handles_);
  handles_.push_back(handle);
}

bool NcclStream::IsEnding() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(handles_.begin(), handles_.end(), [](const auto& each) {
    const auto handle = each.lock();
    return handle && handle->is_ending();
  });
}

void NcclStream::AbortAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& each : handles_) {
    if (const auto handle = each.lock()) handle->Abort();
  }
}

bool NcclStream::AwaitIdle(const std::function<bool()>& go_on) {
  if (!device_.MakeCurrent().ok()) return true;  // no work runs any more
  const auto until = Clock::now() + kLineLastWait;
  for (CUstream stream : {device_.stream()->handle(), stream_}) {
    while (device_.api().StreamQuery(stream) == CUDA_ERROR_NOT_READY) {
      if (!go_on()) return false;
      if (Clock::now() >= until) stuck_ = true;
      if (stuck_) return false;
      std::this_thread::sleep_for(kLineRest);
    }
  }
  return true;
}

bool NcclStream::AwaitEnd(NcclHandle& handle) {
  if (handle.AwaitEnd(Clock::now() + (left_behind_ ? Clock::duration::zero() : kLineLastWait))) return true;
  if (!left_behind_.exchange(true)) {
    std::fprintf(stderr, "lockstep: %s: ncclCommAbort has not ended after %d s, and is abandoned in its thread\n",
                 device_.description().c_str(), static_cast<int>(kLineLastWait.count()));
  }
  return false;
}

}  // namespace lockstep::cuda
