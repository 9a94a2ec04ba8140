// Which ranks MPI's world is for a worker. Used by CreateMpi.

#pragma once

#include <mpi.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep {

// MPI_COMM_WORLD, or the workers' part of it where the job has servers, which returns errors (mpi_roles.h). Requires an
// initialised MPI. The first call is collective over all ranks of the job.
absl::StatusOr<MPI_Comm> WorldOfWorkers(absl::Duration limit);

}  // namespace lockstep
