// How many threads a block of these kernels has: what kernels count with, and what launches give them.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

inline constexpr int64_t kBlock = 256;

}  // namespace lockstep::cuda
