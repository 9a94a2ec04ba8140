// The kernels of this folder as functions on the host, for tests.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::cuda {

struct HostKernel {
  const char* name;
  void (*run)(void** parameters);  // runs one thread (backends/codegen/host_grid.h); parameters[0] points to the
                                   // argument
  size_t bytes;                    // of the argument
  int pointers;                    // the number of pointers at the beginning of the argument
  bool meets;                      // threads of a block wait for each other
};

std::vector<HostKernel> AttentionBf16HostKernels();
std::vector<HostKernel> AttentionF16HostKernels();
std::vector<HostKernel> AttentionF32HostKernels();
std::vector<HostKernel> CopyHostKernels();
std::vector<HostKernel> CumulativeHostKernels();
std::vector<HostKernel> IndexingHostKernels();
std::vector<HostKernel> OrderHostKernels();
std::vector<HostKernel> OverlapHostKernels();
std::vector<HostKernel> PoolingHostKernels();
std::vector<HostKernel> SumHostKernels();

}  // namespace lockstep::cuda
