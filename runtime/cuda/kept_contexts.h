// Primary contexts of GPUs that are kept while no device uses them. NVIDIA's driver makes a context with the first
// device of a GPU and ends it with the last, which takes up to a second each time; where a context is kept, the next
// device of that GPU finds it. A device has its own hold on its context, too, so it does not need this object.

#pragma once

#include <map>
#include <mutex>

#include "absl/status/status.h"
#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

class KeptContexts {
 public:
  KeptContexts() = default;
  // Releases them. The driver has to be there still.
  ~KeptContexts();
  KeptContexts(const KeptContexts&) = delete;
  KeptContexts& operator=(const KeptContexts&) = delete;

  // Keeps the context of this GPU, which is made if there is none, until this object is destroyed. Any thread may call
  // it, any number of times. All calls are of the same driver.
  absl::Status Keep(const DriverApi& driver, CUdevice gpu);

 private:
  std::mutex mutex_;                                                           // guards what follows
  std::map<CUdevice, decltype(DriverApi::DevicePrimaryCtxRelease)> releases_;  // by GPU: what ends the hold on it
};

// Those of this process, by whose driver (Driver()) programs run. Process-wide as primary contexts are. Never
// destroyed: NVIDIA's driver ends contexts when the process exits, and may be gone before a static object is.
KeptContexts& ContextsOfProcess();

}  // namespace lockstep::cuda
