// Elements in the host's memory, for the fakes of libraries that compute. Any thread may call it.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace lockstep::cuda {

// Element `at` of floats of `dtype`.
double ReadElement(DType dtype, const std::byte* data, int64_t at);
void WriteElement(DType dtype, std::byte* data, int64_t at, double x);

// Rounds the significand from 23 bits to that of TF32, to nearest.
double ToTf32(double x);

}  // namespace lockstep::cuda
