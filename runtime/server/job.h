// The parameter servers of an MPI job (runtime/comm/mpi/mpi_roles.h): how a rank becomes a server, and how a worker
// connects to servers.

#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/server/server_client.h"
#include "runtime/server/update.h"

namespace lockstep {

// Runs a server: joins the job, and serves until all its workers have left. `timeout` limits the wait for all ranks to
// arrive. With LOCKSTEP_TOLERATE_WORKERS=1 in the environment, a worker that dies is excluded; otherwise the job then
// fails, and this returns an error. The network interfaces are those of LOCKSTEP_INTERFACE, as in CreateMpi.
absl::Status ServeJob(MakeUpdate make_update, absl::Duration timeout);

// Returns this worker's client of its job's servers, or null if the job has none. Call it after CreateMpi, which makes
// the process a worker. There is one client for the process. It lives until the process exits and then says goodbye.
// The first call connects, with this timeout.
absl::StatusOr<ServerClient*> ConnectToServersOfJob(absl::Duration timeout);

}  // namespace lockstep
