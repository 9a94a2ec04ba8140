// The gradient of a scan: a scan in the opposite direction whose body is the gradient of the body.

#pragma once

#include "core/op_def.h"

namespace lockstep {

// Contributes the gradients. Values of the body that the gradient needs are computed again in each iteration if they
// are cheap; else they, and carried values, become stacked results of the scan. The gradient of a constant is a sum
// over iterations.
void ScanVjp(VjpContext& c);

}  // namespace lockstep
