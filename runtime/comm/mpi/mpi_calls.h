// The start and the end of MPI in this process, and collectives with a time limit, for all users of MPI. The state
// belongs to the process, like MPI itself. Any thread.

#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/comm/mpi/mpi_failed.h"
#include "runtime/comm/mpi/mpi_library.h"
#include "runtime/comm/mpi/mpi_links.h"

namespace lockstep {

// Opens MPI's library (mpi_library.h). Initialises MPI if it is not initialised, and then finalises it when the process
// exits.
absl::Status InitializeMpi();

// Waits for a nonblocking collective. `memory`, which it uses, is kept alive until the collective is complete.
absl::Status AwaitRequest(MpiRequest* request, std::shared_ptr<void> memory, absl::Duration limit, const char* call);

}  // namespace lockstep
