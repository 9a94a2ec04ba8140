// Functions of the host in a stream of a GPU: what keeps them until they have run, and the first error among them.
// Called by CudaDevice, from its thread; the functions run in a thread of the driver.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

class HostCalls {
 public:
  HostCalls() = default;
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  // Queues `function` in `stream`, unless that captures. After one that failed, functions are dropped until TakeError.
  CUresult Queue(const DriverApi& api, CUstream stream, std::function<absl::Status()> function);

  // The first error since TakeError, which forgets it.
  absl::Status error();
  absl::Status TakeError();

  // Whether a function is running now. In a broken context those that have not begun never do.
  bool running() const { return running_.load(std::memory_order_acquire); }

 private:
  struct Call {
    HostCalls* owner;
    std::function<absl::Status()> function;
  };

  static void Run(void* call);  // in the driver's thread
  void Forget();

  // In their order, which is that in which they run. Destroyed by the device's thread, as a function may own what only
  // the device can free, which the driver's thread must not.
  std::deque<std::unique_ptr<Call>> calls_;
  uint64_t forgotten_ = 0;             // calls that are no longer in calls_
  std::atomic<uint64_t> finished_{0};  // calls
  std::atomic<bool> running_{false};
  std::mutex mutex_;  // guards what follows
  absl::Status error_;
};

}  // namespace lockstep::cuda
