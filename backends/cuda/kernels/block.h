// The number of threads in a block of these kernels, for kernels and launches.

#pragma once

#include <stdint.h>

namespace lockstep::cuda {

inline constexpr int64_t kBlock = 256;

}  // namespace lockstep::cuda
