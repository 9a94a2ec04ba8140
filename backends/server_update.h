// The update of a value that a parameter server runs on each push, compiled like any other program. A worker sends the
// text of its graph. `lockstep serve` passes the function below to the server (runtime/server/parameter_server.h),
// which does not know graphs.
//
//   graph @update(%gradient: f32[10], state %value: f32[10], setting %rate: f64[] = 0.1, state %value/v: f32[10])
//       -> (%value: f32[10], %value/v: f32[10]) { … }
//
// The other states are the update's own, zero at first; settings can be set.

#pragma once

#include "absl/status/statusor.h"
#include "runtime/server/update.h"

namespace lockstep {

// Returns a function that compiles updates for the CPU, with one thread. It returns an error for a text that is not a
// graph with an input %gradient and a state %value of the array's type, or that is of several ranks. One thread at a
// time may use the updates.
absl::StatusOr<MakeUpdate> MakeCompiledUpdates();

}  // namespace lockstep
