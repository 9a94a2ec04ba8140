// What a parameter server runs on each push: the update of a value, compiled like any other program. A worker sends the
// text of its graph; `lockstep serve` gives the function below to the server (runtime/server/parameter_server.h), which
// itself knows no graph.
//
//   graph @update(%gradient: f32[10], state %value: f32[10], setting %rate: f64[] = 0.1, state %value/v: f32[10])
//       -> (%value: f32[10], %value/v: f32[10]) { … }
//
// The other states are what the update keeps, zero at first; settings can be set.

#pragma once

#include "absl/status/statusor.h"
#include "runtime/server/update.h"

namespace lockstep {

// For the CPU, with one thread. An error, of a text, if it is no graph with an input %gradient and a state %value of
// the array's type, or if it is of several ranks. The updates are used by one thread.
absl::StatusOr<MakeUpdate> MakeCompiledUpdates();

}  // namespace lockstep
