// For tests that hold for every backend: which one they run on. They are started once for each, with --backend=<name>.

#pragma once

#include "backends/backend.h"

namespace lockstep {

// The backend that the flag --backend names; "cpu" if it is not given. Ends the process if there is none of that name.
const Backend& TestedBackend();

}  // namespace lockstep
