#include "runtime/cuda/kept_contexts.h"

#include <string>

#include "core/status.h"

namespace lockstep::cuda {

KeptContexts::~KeptContexts() {
  for (const auto& [gpu, release] : releases_) (void)release(gpu);
}

absl::Status KeptContexts::Keep(const DriverApi& driver, CUdevice gpu) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (releases_.contains(gpu)) return absl::OkStatus();
  CUcontext context = nullptr;
  RETURN_IF_ERROR(driver.Check(driver.DevicePrimaryCtxRetain(&context, gpu),
                               "cuDevicePrimaryCtxRetain of GPU " + std::to_string(gpu) + ", to keep it"));
  releases_.emplace(gpu, driver.DevicePrimaryCtxRelease);
  return absl::OkStatus();
}

KeptContexts& ContextsOfProcess() {
  static KeptContexts* const contexts = new KeptContexts;
  return *contexts;
}

}  // namespace lockstep::cuda
