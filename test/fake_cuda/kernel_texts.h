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
std::function<std::string(std::string_view family)> FakeKernelTexts(loop_test::Order order = loop_test::Order::kMixed);

}  // namespace lockstep::cuda
