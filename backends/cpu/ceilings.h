// What this processor can do at most, measured.

#pragma once

#include "core/status.h"
#include "runtime/execution/work.h"

namespace lockstep::cpu {

// Times a copy that no cache holds, and products of matrices that caches hold in f32 and, if the processor has them, in
// bf16: the best of many short runs of each of so many threads, which run at one time. TF32 counts as f32, and f64 as
// half of it. It takes about 0.5 s.
absl::StatusOr<Ceilings> MeasureCeilings(int threads);

}  // namespace lockstep::cpu
