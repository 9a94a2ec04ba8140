// The gradient of a scan: a scan the other way round, whose body is the gradient of the body.

#pragma once

#include "core/op_def.h"

namespace lockstep {

// Recomputes in each iteration what is cheap, and has the scan stack what is not, and the carried values, where the
// gradient needs them. The gradient of a constant is a sum over iterations.
void ScanVjp(VjpContext& c);

}  // namespace lockstep
