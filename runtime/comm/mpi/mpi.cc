#include "runtime/comm/mpi/mpi.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "runtime/comm/in_process.h"
#include "runtime/comm/mpi/mpi_calls.h"
#include "runtime/comm/mpi/mpi_introduction.h"
#include "runtime/comm/mpi/mpi_library.h"
#include "runtime/comm/mpi/mpi_links.h"
#include "runtime/comm/mpi/mpi_roles.h"
#include "runtime/comm/mpi/mpi_world.h"
#include "runtime/comm/world/rendezvous.h"

namespace lockstep {
namespace {

absl::StatusOr<MpiComm> Duplicate(MpiComm world, absl::Duration limit) {
  MpiErrhandler before{};
  Mpi().Comm_get_errhandler(world, &before);
  Mpi().Comm_set_errhandler(world, Mpi().errors_return);
  auto comm = std::make_shared<MpiComm>(Mpi().comm_null);
  MpiRequest request = Mpi().request_null;
  absl::Status status = MpiStatus(Mpi().Comm_idup(world, comm.get(), &request), "MPI_Comm_idup");
  if (status.ok()) status = AwaitRequest(&request, comm, limit, "MPI_Comm_idup");
  Mpi().Comm_set_errhandler(world, before);
  Mpi().Errhandler_free(&before);
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(MpiStatus(Mpi().Comm_set_errhandler(*comm, Mpi().errors_return), "MPI_Comm_set_errhandler"));
  return *comm;
}

absl::Status CheckThreadLevel() {
  int level = kMpiThreadSingle;
  Mpi().Query_thread(&level);
  if (level == kMpiThreadMultiple) return absl::OkStatus();
  return FailedPrecondition()
         << "MPI can carry messages between hosts only with MPI_THREAD_MULTIPLE, but another library initialised it "
         << "with thread level " << level << "; create the communicator first, or initialise MPI with that level";
}

// Returns an error if the environment says that this process, which is MPI's only rank, is one of several that meet
// without MPI: each would be a world of its own.
absl::Status CheckIsAlone() {
  const absl::StatusOr<std::optional<Rendezvous>> place = RendezvousOfEnvironment();
  if (!place.ok() || !place->has_value() || (*place)->size == 1) return absl::OkStatus();
  return FailedPrecondition() << "this process is rank " << (*place)->rank << " of " << (*place)->size
                              << " according to its environment (RANK and WORLD_SIZE, or srun's), and it was not "
                              << "started by mpirun: the ranks meet by Communicator.from_environment(), not by mpi()";
}

// Returns the world of a process that is the only rank. `missing` is the error if a launcher has started several.
absl::StatusOr<std::unique_ptr<Communicator>> CreateWithoutMpi(const absl::Status& missing) {
  RETURN_IF_ERROR(CheckIsAlone());
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* const ranks = std::getenv(variable);
    if (ranks == nullptr || std::atoi(ranks) < 2) continue;
    return Annotate(missing, std::string("this process is one of ") + ranks + " ranks (" + variable + ")");
  }
  ASSIGN_OR_RETURN(const std::optional<RoleCounts> roles, RolesOfEnvironment());
  if (roles) return Annotate(missing, "this process is a worker of a job with servers");
  return CreateSingle();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateMpi(const WorldOptions& options) {
  const absl::Duration limit = options.communicator.timeout;
  if (const absl::Status found = OpenMpi(); !found.ok()) return CreateWithoutMpi(found);
  RETURN_IF_ERROR(InitializeMpi());
  ASSIGN_OR_RETURN(MpiComm world, WorldOfWorkers(limit));
  int ranks = 1;
  Mpi().Comm_size(Mpi().comm_world, &ranks);
  if (ranks == 1) RETURN_IF_ERROR(CheckIsAlone());
  ASSIGN_OR_RETURN(MpiComm comm, Duplicate(world, limit));
  MpiIntroduction introduction(comm, limit);
  bool carries_data = false;
  WorldKind kind{.transport = "mpi",
                 .links = [&](std::vector<int> begins) -> absl::StatusOr<std::unique_ptr<Links>> {
                   RETURN_IF_ERROR(CheckThreadLevel());
                   carries_data = true;
                   return CreateMpiLinks(comm, std::move(begins));
                 },
                 .on_leave =
                     [](const absl::Status& failure) {
                       if (!failure.ok()) MarkMpiFailed();
                     }};
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, CreateWorld(introduction, options, std::move(kind)));
  // If MPI carries data, its communicator lives until MPI ends: freeing it is a collective, which a failed world cannot
  // run.
  if (!carries_data) Mpi().Comm_free(&comm);
  return communicator;
}

absl::StatusOr<std::string> MpiLibraryVersion() {
  RETURN_IF_ERROR(OpenMpi());
  std::string text(kMpiTextBytes, '\0');
  int length = 0;
  if (Mpi().Get_library_version(text.data(), &length) != kMpiSuccess) return "an MPI library of unknown version";
  text.resize(static_cast<size_t>(length));
  return text;
}

}  // namespace lockstep
