// Launches kernels of kernels/ for emitters. One thread at a time may use an object.

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends/cuda/kernel_image.h"
#include "backends/cuda/kernels/block.h"
#include "core/dtype.h"

namespace lockstep::cuda {

// One kernel of a family, looked up in the family's image at its first run.
class DeviceKernel {
 public:
  DeviceKernel() = default;  // empty, until it is assigned
  DeviceKernel(std::shared_ptr<KernelImage> image, std::string name)
      : image_(std::move(image)), name_(std::move(name)) {}

  // Queues the kernel with whole blocks of `block` threads that have at least `threads` threads together; does nothing
  // for zero threads. `arguments` is the kernel's argument struct in kernels/<family>.h.
  template <typename Arguments>
  absl::Status Run(CudaStream& stream, int64_t threads, Arguments arguments, int64_t block = kBlock) {
    void* parameters[] = {&arguments};
    return RunWith(stream, threads, block, parameters);
  }

 private:
  absl::Status RunWith(CudaStream& stream, int64_t threads, int64_t block, void** parameters);

  std::shared_ptr<KernelImage> image_;
  std::string name_;
  CUfunction function_ = nullptr;
};

// Returns a name such as "copy_b4", the kernel for elements of this many bytes.
std::string NameFor(std::string_view kernel, uint64_t bytes);
// Returns a name such as "scatter_f32".
std::string NameFor(std::string_view kernel, DType dtype);

// Sorts lines of keys and numbers (kernels/order.h): `lines` lines of `length` entries, plus padding.
class LineSort {
 public:
  LineSort(std::shared_ptr<KernelImage> image, int64_t lines, int64_t length);

  int64_t padded() const { return padded_; }
  int64_t total() const { return lines_ * padded_; }
  // The size of scratch memory: keys, then numbers.
  uint64_t scratch_bytes() const { return static_cast<uint64_t>(total()) * (sizeof(uint64_t) + sizeof(uint32_t)); }
  uint64_t* KeysIn(std::byte* scratch) const { return reinterpret_cast<uint64_t*>(scratch); }
  uint32_t* NumbersIn(std::byte* scratch) const { return reinterpret_cast<uint32_t*>(KeysIn(scratch) + total()); }

  absl::Status Run(CudaStream& stream, std::byte* scratch);

 private:
  int64_t lines_, padded_;
  DeviceKernel tiles_, step_, tail_;
};

}  // namespace lockstep::cuda
