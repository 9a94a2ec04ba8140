// Time for timeouts and regular checks of peers. It uses the steady clock, which cannot be set.

#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace lockstep {

// Returns the time since a moment that is fixed while the machine runs.
inline absl::Duration SteadyNow() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace lockstep
