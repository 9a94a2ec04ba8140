// The cuda backend on fake GPUs: it compiles for an H200, with the kernels of loops compiled for the host, and uses the
// libraries of this folder. For tests whose data contains //test/fake_cuda:libraries and whose LD_LIBRARY_PATH is
// test/fake_cuda, so that these libraries are found before NVIDIA's.

#pragma once

#include <memory>

#include "backends/backend.h"
#include "runtime/cuda/kept_contexts.h"

namespace lockstep::cuda {

// Creates new fake GPUs; devices of earlier ones must be destroyed. Ranks share GPUs if the host has more ranks than
// GPUs. `contexts` as for CreateCudaBackend.
std::unique_ptr<Backend> CreateFakeCudaBackend(int gpus = 8, KeptContexts* contexts = nullptr);

}  // namespace lockstep::cuda
