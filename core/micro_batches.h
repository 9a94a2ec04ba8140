// The mesh axis of micro-batches. A loop over micro-batches is made like a program for ranks: a value that is split
// along this axis is cut into micro-batches, and an iteration computes one as a rank would
// (passes/training/accumulate.h). No mesh that runs has this axis, and users cannot name it: no name begins with '%'.

#pragma once

#include <string_view>

namespace lockstep {

inline constexpr std::string_view kMicroBatchAxis = "%micro-batches";

}  // namespace lockstep
