// The names of states that passes add beside the trained ones.

#pragma once

#include <string>

namespace lockstep::passes {

// The average of `state` over the steps (passes/training/averaging.h).
inline std::string AverageOf(const std::string& state) { return state + "/average"; }

}  // namespace lockstep::passes
