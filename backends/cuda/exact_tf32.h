// Products of f32 that TF32 multiplies without rounding, whether or not the user allows TF32.

#pragma once

#include "core/graph.h"

namespace lockstep::cuda {

// Returns true if both operands are numbers of f16 or bf16 that were converted to f32, such as those of the gradient of
// a filter in mixed precision. TF32 has their significands (at most 11 bits) and the exponents of f32.
bool IsExactInTf32(const Node& product);

}  // namespace lockstep::cuda
