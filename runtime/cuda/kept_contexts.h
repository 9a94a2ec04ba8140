// Primary contexts of GPUs that are kept while no device uses them. NVIDIA's driver creates a context with the first
// device of a GPU and ends it with the last, which takes up to a second each time. If the context is kept, the next
// device of that GPU reuses it. A device also holds its context itself, so it does not need this object.

#pragma once

#include <map>
#include <mutex>

#include "absl/status/status.h"
#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

class KeptContexts {
 public:
  KeptContexts() = default;
  // Releases the contexts. The driver must still be loaded.
  ~KeptContexts();
  KeptContexts(const KeptContexts&) = delete;
  KeptContexts& operator=(const KeptContexts&) = delete;

  // Keeps the context of this GPU until this object is destroyed, and creates it if necessary. Any thread may call it,
  // any number of times. All calls must use the same driver.
  absl::Status Keep(const DriverApi& driver, CUdevice gpu);

 private:
  std::mutex mutex_;  // guards the following members
  // by GPU: the function that releases its context
  std::map<CUdevice, decltype(DriverApi::DevicePrimaryCtxRelease)> releases_;
};

// Returns the contexts of this process, for the driver that it uses (Driver()). Process-wide, like primary contexts.
// Never destroyed: NVIDIA's driver ends contexts when the process exits, and may be unloaded before static objects are
// destroyed.
KeptContexts& ContextsOfProcess();

}  // namespace lockstep::cuda
