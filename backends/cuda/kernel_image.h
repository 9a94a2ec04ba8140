// Kernels as a GPU loads them: a compiler's text, which the driver compiles to machine code when it is loaded on a
// device (preparation.h). Shared by all kernels that run its code. One thread at a time may use it.

#pragma once

#include <array>
#include <memory>
#include <string>

#include "core/status.h"
#include "runtime/cuda/device.h"

namespace lockstep::cuda {

class KernelImage {
 public:
  explicit KernelImage(std::shared_ptr<const std::string> text) : text_(std::move(text)) {}
  ~KernelImage();
  KernelImage(const KernelImage&) = delete;
  KernelImage& operator=(const KernelImage&) = delete;

  // Loads the image for the device, whose context must be current; does nothing if it is loaded. An error includes the
  // messages of the driver's compiler, or the driver that is needed if this one is too old (ptx_version.h).
  absl::Status Load(CudaDevice& device);

  // Returns the kernel with this name, in the device's memory; loads the image if necessary. Otherwise CUDA would load
  // the kernel at its first launch (CUDA_MODULE_LOADING=LAZY, the default), in the middle of a step.
  absl::StatusOr<CUfunction> Find(CudaDevice& device, const std::string& kernel);

 private:
  const std::shared_ptr<const std::string> text_;
  const DriverApi* api_ = nullptr;
  CUmodule module_ = nullptr;
};

struct Grid {
  int64_t blocks_x = 1, blocks_y = 1;
  int64_t threads = 1;  // of a block
};

// Queues the kernel; `parameters` are the addresses of its arguments.
absl::Status Launch(CudaStream& stream, CUfunction kernel, const Grid& grid, void** parameters);

}  // namespace lockstep::cuda
