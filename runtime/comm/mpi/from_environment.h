// The world of this process according to its environment.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/comm/world/world.h"

namespace lockstep {

// Returns the communicator of this process's rank. Where RANK and WORLD_SIZE are set, as by torchrun, or srun has
// started this process without MPI, the ranks meet where the environment says (rendezvous.h). Otherwise this is
// CreateMpi (mpi.h): the ranks of mpirun, or one rank. Collective over the ranks. A job of the former kind has no
// parameter servers, and MPI cannot carry its messages: both are errors.
absl::StatusOr<std::unique_ptr<Communicator>> CreateFromEnvironment(const WorldOptions& options = {});

}  // namespace lockstep
