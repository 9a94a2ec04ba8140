// What the fakes of libraries that compute share: elements in the host's memory. Any thread may call it.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace lockstep::cuda {

// Element `at` of floats of `dtype`.
double ReadElement(DType dtype, const std::byte* data, int64_t at);
void WriteElement(DType dtype, std::byte* data, int64_t at, double x);

// What is left of a significand of 23 bits in TF32, rounded to the nearest.
double ToTf32(double x);

}  // namespace lockstep::cuda
