// The CPU backend: oneDNN for matrix products, convolutions and pooling, LLVM for loops, OpenMP for threads.

#pragma once

#include <memory>

#include "backends/backend.h"

namespace lockstep {

std::unique_ptr<Backend> CreateCpuBackend();

}  // namespace lockstep
