// The kernels of backends/cuda/kernels/ on the fake driver: the same sources, compiled for the host. For tests of the
// cuda backend.

#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "backends/codegen/host_grid.h"

namespace lockstep::cuda {

// Images in the form that the fake driver's cuModuleLoadDataEx takes, by family. Blocks, and the threads of a block,
// run in `order`, which is one setting for the process.
std::function<std::string(std::string_view family)> FakeKernelTexts(loop_test::Order order = loop_test::Order::kMixed);

}  // namespace lockstep::cuda
