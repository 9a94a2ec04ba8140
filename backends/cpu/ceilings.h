// What this processor can do at most, measured.

#pragma once

#include "core/status.h"
#include "runtime/execution/work.h"

namespace lockstep::cpu {

// Times a copy that no cache holds and products of matrices that caches hold, with so many threads: the best of some
// runs, about 0.3 s in all.
absl::StatusOr<Ceilings> MeasureCeilings(int threads);

}  // namespace lockstep::cpu
