// The ranks of a worker's world in MPI. Used by CreateMpi.

#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/comm/mpi/mpi_library.h"

namespace lockstep {

// Returns MPI_COMM_WORLD or, in a job with servers, the communicator of the workers, which returns errors
// (mpi_roles.h). Requires an initialised MPI. The first call is collective over all ranks of the job.
absl::StatusOr<MpiComm> WorldOfWorkers(absl::Duration limit);

}  // namespace lockstep
