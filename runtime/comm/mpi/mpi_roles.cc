#include "runtime/comm/mpi/mpi_roles.h"

#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/status.h"
#include "runtime/comm/mpi/mpi_calls.h"
#include "runtime/comm/mpi/mpi_introduction.h"
#include "runtime/comm/mpi/mpi_world.h"
#include "runtime/process/process.h"

namespace lockstep {
namespace {

constexpr char kWorkers[] = "LOCKSTEP_WORKERS", kServers[] = "LOCKSTEP_SERVERS";

// The facts of this process's job, once it has joined. A state of the process, like MPI itself.
struct Job {
  std::mutex mutex;
  bool has_joined = false;
  MpiComm workers = {};
  std::unique_ptr<ServersOfJob> servers;
};
Job& ThisJob() {
  static Job* const job = new Job;  // never destroyed, because code that runs at the exit of the process uses it
  return *job;
}

absl::StatusOr<std::optional<int>> Count(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  int count = 0;
  const std::string_view digits = text;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || count < 0)
    return InvalidArgument() << "the environment's " << variable << " is '" << text << "', expected a number";
  return count;
}

// The facts that a rank sends to the others.
struct RankInJob {
  uint8_t is_server = 0;
  ServerFacts facts;
};

// Joins the ranks of the job. Returns this one's number among all.
absl::StatusOr<int> Join(Job& job, const RoleCounts& roles, const RankInJob& mine, absl::Duration limit) {
  MpiIntroduction ranks(Mpi().comm_world, limit);
  const int rank = ranks.rank(), size = ranks.size();
  if (roles.workers + roles.servers != size) {
    return FailedPrecondition() << kWorkers << "=" << roles.workers << " and " << kServers << "=" << roles.servers
                                << " are " << roles.workers + roles.servers << " ranks, and the MPI job has " << size;
  }
  ASSIGN_OR_RETURN(const std::vector<RankInJob> all, GatherFacts(ranks, mine));
  for (int r = 0; r < size; ++r) {
    if (all[static_cast<size_t>(r)].is_server == (r >= roles.workers)) continue;
    return FailedPrecondition() << "rank " << r << " on host " << all[static_cast<size_t>(r)].facts.host << " is a "
                                << (r >= roles.workers ? "worker" : "server") << ", but with " << kWorkers << "="
                                << roles.workers << " and " << kServers << "=" << roles.servers << " ranks from "
                                << roles.workers << " on are servers: mpirun -n " << roles.workers << " PROGRAM : -n "
                                << roles.servers << " python -m lockstep serve";
  }
  MpiComm of_role = Mpi().comm_null;
  RETURN_IF_ERROR(MpiStatus(Mpi().Comm_split(Mpi().comm_world, mine.is_server, rank, &of_role), "MPI_Comm_split"));
  RETURN_IF_ERROR(MpiStatus(Mpi().Comm_set_errhandler(of_role, Mpi().errors_return), "MPI_Comm_set_errhandler"));
  job.workers = of_role;
  job.servers = std::make_unique<ServersOfJob>();
  job.servers->worker = rank;
  job.servers->workers = roles.workers;
  for (int r = roles.workers; r < size; ++r) job.servers->servers.push_back(all[static_cast<size_t>(r)].facts);
  job.has_joined = true;
  return rank;
}

}  // namespace

absl::StatusOr<std::optional<RoleCounts>> RolesOfEnvironment() {
  ASSIGN_OR_RETURN(const std::optional<int> servers, Count(kServers));
  if (!servers || *servers == 0) return std::nullopt;
  ASSIGN_OR_RETURN(const std::optional<int> workers, Count(kWorkers));
  if (!workers || *workers == 0) {
    return InvalidArgument() << "the environment has " << kServers << "=" << *servers << " and "
                             << (workers ? std::string(kWorkers) + "=0" : std::string("no ") + kWorkers)
                             << ", expected the number of workers";
  }
  return RoleCounts{*workers, *servers};
}

absl::StatusOr<MpiComm> WorldOfWorkers(absl::Duration limit) {
  Job& job = ThisJob();
  const std::lock_guard<std::mutex> lock(job.mutex);
  if (job.has_joined) return job.workers;
  ASSIGN_OR_RETURN(const std::optional<RoleCounts> roles, RolesOfEnvironment());
  if (!roles) return Mpi().comm_world;
  RankInJob mine;
  CopyText(HostName(), mine.facts.host, sizeof(mine.facts.host));
  RETURN_IF_ERROR(Join(job, *roles, mine, limit).status());
  return job.workers;
}

absl::StatusOr<int> JoinMpiAsServer(const ServerFacts& facts, absl::Duration limit) {
  ASSIGN_OR_RETURN(const std::optional<RoleCounts> roles, RolesOfEnvironment());
  if (!roles) {
    return FailedPrecondition() << "a server is a rank of a job whose environment has " << kWorkers << " and "
                                << kServers << "; `lockstep launch -n N -s S` starts one";
  }
  RETURN_IF_ERROR(InitializeMpi());
  Job& job = ThisJob();
  const std::lock_guard<std::mutex> lock(job.mutex);
  ASSIGN_OR_RETURN(const int rank, Join(job, *roles, {.is_server = 1, .facts = facts}, limit));
  return rank - roles->workers;
}

const ServersOfJob* FindServersOfJob() {
  Job& job = ThisJob();
  const std::lock_guard<std::mutex> lock(job.mutex);
  return job.servers.get();
}

}  // namespace lockstep
