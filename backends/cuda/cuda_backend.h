// The backend for NVIDIA GPUs: kernels of cuBLASLt and cuDNN, loops compiled to PTX, NCCL. It compiles on any machine;
// its programs run where the driver and the libraries are found. docs/gpu.md says what has been tested, and on which
// GPUs.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "backends/backend.h"
#include "backends/codegen/grid_compiler.h"
#include "runtime/cuda/kept_contexts.h"

namespace lockstep {

// The process keeps the context of a GPU from its first device on (cuda::ContextsOfProcess).
std::unique_ptr<Backend> CreateCudaBackend();

// For tests: creates a backend with other images than PTX, for loops and for each family of kernels/. `contexts` keeps
// contexts and must outlive the backend; if it is null, a context ends with its last device.
std::unique_ptr<Backend> CreateCudaBackend(GridCompiler::MakeTarget make_images,
                                           std::function<std::string(std::string_view family)> kernel_texts,
                                           cuda::KeptContexts* contexts = nullptr);

}  // namespace lockstep
