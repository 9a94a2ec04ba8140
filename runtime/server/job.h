// The parameter servers of an MPI job (runtime/comm/mpi/mpi_roles.h): how a rank serves, and how a worker finds them.

#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/server/server_client.h"
#include "runtime/server/update.h"

namespace lockstep {

// The whole life of a server: joins the job, and serves until all its workers have left. `timeout`: for all ranks to
// come. With LOCKSTEP_TOLERATE_WORKERS=1 in the environment a worker that dies is left out; else the job then fails,
// and so does this. Network interfaces are those of LOCKSTEP_INTERFACE, as in CreateMpi.
absl::Status ServeJob(MakeUpdate make_update, absl::Duration timeout);

// This worker's end of its job's servers, after CreateMpi, which makes the process a worker; null if the job has none.
// One for the process, which lives until its exit and says farewell there. The first call connects, with this timeout.
absl::StatusOr<ServerClient*> ConnectToServersOfJob(absl::Duration timeout);

}  // namespace lockstep
