// Finds the fake driver, for the fakes of other libraries. Each of them has its own copy of this. Any thread may call
// it.

#pragma once

#include <cstddef>
#include <functional>

#include "test/fake_cuda/fake_driver.h"

namespace lockstep::cuda {

// The fake driver of the folder from which this library was opened. It must already be open; otherwise all members are
// null.
struct DriverOfFolder {
  FakeDriver* fake = nullptr;
  CUresult (*launch_host)(CUstream, CUhostFn, void*) = nullptr;
  CUresult (*mem_alloc)(CUdeviceptr*, size_t) = nullptr;
  CUresult (*mem_free)(CUdeviceptr) = nullptr;

  // The host address of bytes of the GPU; null if they are not in one allocation.
  std::byte* Find(const void* address, size_t bytes) const {
    return fake->Find(reinterpret_cast<CUdeviceptr>(address), bytes);
  }
  // Returns true if the stream took the work. `work` is kept for the life of the process, because a graph may run it
  // again.
  bool Enqueue(CUstream stream, std::function<void()> work) const;
};
const DriverOfFolder& TheDriver();

}  // namespace lockstep::cuda
