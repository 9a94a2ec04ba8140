#include "runtime/comm/mpi/mpi.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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
  if (level == Mpi().thread_multiple) return absl::OkStatus();
  return FailedPrecondition()
         << "MPI can carry messages between hosts only with MPI_THREAD_MULTIPLE, but another library initialised it "
         << "with thread level " << level << "; create the communicator first, or initialise MPI with that level";
}

// The variables in which launchers tell a rank of MPI how many there are: Open MPI's; MPICH's and Intel MPI's; Slurm's.
constexpr const char* kSizeVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

// Returns the value of a variable if it says that there are several ranks.
const char* SeveralRanks(const char* variable) {
  const char* const ranks = std::getenv(variable);
  return ranks != nullptr && std::atoi(ranks) > 1 ? ranks : nullptr;
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

// The error of a process whose mpirun is not that of its library. `variable` is mpirun's, and has the number of ranks.
absl::Status OtherMpirun(const char* variable) {
  return FailedPrecondition() << "mpirun has started this process as one of " << std::getenv(variable) << " ranks ("
                              << variable << "), and is not of the same MPI as the library, which is "
                              << MpiLibraryVersion().value_or("unknown")
                              << "; LOCKSTEP_MPI_LIBRARY names the library of this mpirun";
}

// Returns that error if mpirun is Open MPI's, and the library is another one, which would end the process in MPI_Init.
absl::Status CheckBeforeInit() {
  const char* const variable = kSizeVariables[0];
  if (SeveralRanks(variable) == nullptr || MpiLibraryVersion().value_or("").starts_with("Open MPI"))
    return absl::OkStatus();
  return OtherMpirun(variable);
}

// Returns that error for a process that MPI finds alone, though its mpirun has started several.
absl::Status CheckIsAloneForMpirun() {
  for (const char* variable : {kSizeVariables[0], kSizeVariables[1]}) {
    if (SeveralRanks(variable) != nullptr) return OtherMpirun(variable);
  }
  return absl::OkStatus();
}

// Returns the world of a process that is the only rank. `missing` is the error if a launcher has started several.
absl::StatusOr<std::unique_ptr<Communicator>> CreateWithoutMpi(const absl::Status& missing) {
  RETURN_IF_ERROR(CheckIsAlone());
  for (const char* variable : kSizeVariables) {
    const char* const ranks = SeveralRanks(variable);
    if (ranks == nullptr) continue;
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
  RETURN_IF_ERROR(CheckBeforeInit());
  RETURN_IF_ERROR(InitializeMpi());
  ASSIGN_OR_RETURN(MpiComm world, WorldOfWorkers(limit));
  int ranks = 1;
  Mpi().Comm_size(Mpi().comm_world, &ranks);
  if (ranks == 1) {
    RETURN_IF_ERROR(CheckIsAlone());
    RETURN_IF_ERROR(CheckIsAloneForMpirun());
  }
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
  // MPICH's text has a line for each fact, and several spaces or a tab before its value.
  const std::vector<std::string> words =
      absl::StrSplit(text.substr(0, text.find('\n')), absl::ByAnyChar("\t "), absl::SkipEmpty());
  return absl::StrJoin(words, " ");
}

}  // namespace lockstep
