// The axis of time. A loop over micro-batches is made as a program is for ranks: what is placed along this axis is cut
// into micro-batches, each of which an iteration computes as a rank would (passes/training/accumulate.h). It is never
// an axis of a mesh that runs, and no mesh that a user names has it: '%' begins no name.

#pragma once

#include <string_view>

namespace lockstep {

inline constexpr std::string_view kMicroBatchAxis = "%micro-batches";

}  // namespace lockstep
