// Time for timeouts and for looking at peers now and then: of the steady clock, which nobody can set.

#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace lockstep {

// Since a moment that is fixed while the machine runs.
inline absl::Duration SteadyNow() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace lockstep
