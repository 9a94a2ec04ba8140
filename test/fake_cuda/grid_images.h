// Kernels of loops that run on the fake driver: the code that GridFunction writes for a GPU, made for the host. For
// tests of the cuda backend.

#pragma once

#include "backends/codegen/grid_compiler.h"

namespace lockstep::cuda {

// Images as cuModuleLoadDataEx of the fake driver takes them.
GridCompiler::MakeTarget FakeGridImages();

}  // namespace lockstep::cuda
