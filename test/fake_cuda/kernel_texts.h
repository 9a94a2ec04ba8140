// The kernels of backends/cuda/kernels/ that run on the fake driver: the same sources, made for the host. For tests of
// the cuda backend.

#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "backends/codegen/host_grid.h"

namespace lockstep::cuda {

// Images as cuModuleLoadDataEx of the fake driver takes them, by family. Blocks, and threads of one, run in `order`,
// which is one for the process.
std::function<std::string(std::string_view family)> FakeKernelTexts(testing::Order order = testing::Order::kMixed);

}  // namespace lockstep::cuda
