// Functions of the host in a GPU stream: stores them until they have run, and the first error among them. CudaDevice
// calls it from its thread. The functions run in a thread of the driver.

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

  // Queues `function` in `stream`, unless the stream is being captured. After a function has failed, later ones are
  // dropped until TakeError.
  CUresult Queue(const DriverApi& api, CUstream stream, std::function<absl::Status()> function);

  // Return the first error since TakeError. TakeError also clears it.
  absl::Status error();
  absl::Status TakeError();

  // True if a function is running now. In a broken context, functions that have not started never do.
  bool running() const { return running_.load(std::memory_order_acquire); }

 private:
  struct Call {
    HostCalls* owner;
    std::function<absl::Status()> function;
  };

  static void Run(void* call);  // in the driver's thread
  void Forget();

  // In the order in which they run. The device's thread destroys them, because a function may own objects that only the
  // device can free, which the driver's thread must not do.
  std::deque<std::unique_ptr<Call>> calls_;
  uint64_t forgotten_ = 0;             // calls that were removed from calls_
  std::atomic<uint64_t> finished_{0};  // calls that have run
  std::atomic<bool> running_{false};
  std::mutex mutex_;  // guards the following members
  absl::Status error_;
};

}  // namespace lockstep::cuda
