// The cuda backend on fake GPUs: what it compiles for an H200, with the kernels of loops made for the host, and the
// libraries of this folder. For tests, whose data holds //test/fake_cuda:libraries and whose LD_LIBRARY_PATH is
// test/fake_cuda, so that they are found before NVIDIA's.

#pragma once

#include <memory>

#include "backends/backend.h"
#include "runtime/cuda/kept_contexts.h"

namespace lockstep::cuda {

// GPUs are made anew; no device of an earlier one may live. Ranks share them if there are more ranks of this host.
// `contexts` as for CreateCudaBackend.
std::unique_ptr<Backend> CreateFakeCudaBackend(int gpus = 8, KeptContexts* contexts = nullptr);

}  // namespace lockstep::cuda
