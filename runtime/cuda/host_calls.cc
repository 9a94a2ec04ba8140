#include "runtime/cuda/host_calls.h"

#include <utility>

namespace lockstep::cuda {

CUresult HostCalls::Queue(const DriverApi& api, CUstream stream, std::function<absl::Status()> function) {
  Forget();
  calls_.push_back(std::make_unique<Call>(Call{this, std::move(function)}));
  const CUresult result = api.LaunchHostFunc(stream, Run, calls_.back().get());
  if (result != CUDA_SUCCESS) calls_.pop_back();
  return result;
}

absl::Status HostCalls::error() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

absl::Status HostCalls::TakeError() {
  Forget();
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(error_, absl::OkStatus());
}

void HostCalls::Run(void* data) {
  const Call& call = *static_cast<const Call*>(data);
  HostCalls& owner = *call.owner;
  owner.running_.store(true, std::memory_order_relaxed);
  std::unique_lock<std::mutex> lock(owner.mutex_);
  const bool drops = !owner.error_.ok();
  lock.unlock();
  const absl::Status status = drops ? absl::OkStatus() : call.function();
  lock.lock();
  if (owner.error_.ok()) owner.error_ = status;
  lock.unlock();
  owner.finished_.fetch_add(1, std::memory_order_release);
  owner.running_.store(false, std::memory_order_release);  // the last access
}

void HostCalls::Forget() {
  const uint64_t finished = finished_.load(std::memory_order_acquire);
  for (; forgotten_ < finished; ++forgotten_) calls_.pop_front();
}

}  // namespace lockstep::cuda
