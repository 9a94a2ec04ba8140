// The backend of NVIDIA's GPUs: cuBLASLt's and cuDNN's kernels, loops compiled to PTX, NCCL. It compiles anywhere; what
// it makes runs where the driver and the libraries are found. docs/gpu.md says what has been checked, and where.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "backends/backend.h"
#include "backends/codegen/grid_compiler.h"
#include "runtime/cuda/kept_contexts.h"

namespace lockstep {

// The process keeps the context of a GPU from the first device on (cuda::ContextsOfProcess).
std::unique_ptr<Backend> CreateCudaBackend();

// With images of another kind than PTX, for tests: of loops, and of a family of kernels/. `contexts`, which outlives
// the backend, keeps contexts; if it is null they end with their last device.
std::unique_ptr<Backend> CreateCudaBackend(GridCompiler::MakeTarget make_images,
                                           std::function<std::string(std::string_view family)> kernel_texts,
                                           cuda::KeptContexts* contexts = nullptr);

}  // namespace lockstep
