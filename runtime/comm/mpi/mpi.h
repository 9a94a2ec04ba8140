// Communicators over MPI: the ranks that mpirun started. MPI introduces the ranks to each other (world.h). It may also
// carry the messages between hosts: each group's progress thread uses only nonblocking calls. MPI's errors become
// absl::Status; MPI never ends the process.

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/comm/world/world.h"
#include "runtime/communicator.h"

namespace lockstep {

// Returns the communicator of this process's rank in MPI_COMM_WORLD, duplicated. Collective over the world; may be
// called several times. Initialises MPI with MPI_THREAD_MULTIPLE and finalises it when the process exits, unless
// another library (mpi4py) has initialised it. If then MPI carries messages between hosts, that level must have been
// provided. Without mpirun, this is a world of one rank, which needs no MPI library. It is an error if the library
// finds one rank, and according to the environment there are several: they meet without MPI (from_environment.h), or
// their mpirun is that of another MPI. In a job with parameter servers, this is the world of the workers (mpi_roles.h).
absl::StatusOr<std::unique_ptr<Communicator>> CreateMpi(const WorldOptions& options = {});

// Returns the name and version of the MPI library: the first line of its text, "Open MPI v4.1.4, ..." or "MPICH
// Version: 5.0.2". Does not need an initialised MPI. If there is no library, the error is that of LoadMpi
// (mpi_library.h).
absl::StatusOr<std::string> MpiLibraryVersion();

}  // namespace lockstep
