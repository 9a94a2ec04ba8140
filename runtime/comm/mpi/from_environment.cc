#include "runtime/comm/mpi/from_environment.h"

#include <optional>

#include "core/status.h"
#include "runtime/comm/in_process.h"
#include "runtime/comm/mpi/mpi.h"
#include "runtime/comm/mpi/mpi_roles.h"
#include "runtime/comm/world/rendezvous.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<Communicator>> CreateFromEnvironment(const WorldOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<Rendezvous> place, RendezvousOfEnvironment());
  if (!place) return CreateMpi(options);
  ASSIGN_OR_RETURN(const std::optional<RoleCounts> roles, RolesOfEnvironment());
  if (roles) return FailedPrecondition() << "parameter servers need mpirun, and RANK and WORLD_SIZE are set instead";
  if (place->size == 1) return CreateSingle();
  ASSIGN_OR_RETURN(const std::unique_ptr<Introduction> introduction, Meet(*place, options.communicator.timeout));
  return CreateWorld(*introduction, options, {.transport = "rendezvous"});
}

}  // namespace lockstep
