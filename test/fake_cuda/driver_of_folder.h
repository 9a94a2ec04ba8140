// The fake driver, as the fakes of other libraries find it. Each of them has its own copy of this. Any thread may call
// it.

#pragma once

#include <cstddef>
#include <functional>

#include "test/fake_cuda/fake_driver.h"

namespace lockstep::cuda {

// The fake driver of the folder that this library was opened from. It is open already; else all of it is null.
struct DriverOfFolder {
  FakeDriver* fake = nullptr;
  CUresult (*launch_host)(CUstream, CUhostFn, void*) = nullptr;
  CUresult (*mem_alloc)(CUdeviceptr*, size_t) = nullptr;
  CUresult (*mem_free)(CUdeviceptr) = nullptr;

  // Where the host finds bytes at an address of the GPU; null if they are not of one piece of its memory.
  std::byte* Find(const void* address, size_t bytes) const {
    return fake->Find(reinterpret_cast<CUdeviceptr>(address), bytes);
  }
  // Whether the stream took it. It is kept while the process lives: a graph may run it again.
  bool Enqueue(CUstream stream, std::function<void()> work) const;
};
const DriverOfFolder& TheDriver();

}  // namespace lockstep::cuda
