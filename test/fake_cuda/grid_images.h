// Kernels of loops that run on the fake driver: the code that GridFunction writes for a GPU, compiled for the host. For
// tests of the cuda backend.

#pragma once

#include "backends/codegen/grid_compiler.h"

namespace lockstep::cuda {

// Images in the form that the fake driver's cuModuleLoadDataEx takes.
GridCompiler::MakeTarget FakeGridImages();

}  // namespace lockstep::cuda
