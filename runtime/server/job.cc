#include "runtime/server/job.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/status.h"
#include "runtime/comm/mpi/mpi_failed.h"
#include "runtime/comm/mpi/mpi_roles.h"
#include "runtime/comm/network/sockets.h"
#include "runtime/process/process.h"
#include "runtime/process/process_end.h"
#include "runtime/server/parameter_server.h"

namespace lockstep {
namespace {

constexpr char kTolerate[] = "LOCKSTEP_TOLERATE_WORKERS";

absl::StatusOr<bool> ToleratesLoss() {
  const char* const text = std::getenv(kTolerate);
  const std::string value = text == nullptr ? "0" : text;
  if (value == "0" || value == "1") return value == "1";
  return InvalidArgument() << "the environment's " << kTolerate << " is '" << value << "', expected 0 or 1";
}

// A state of the process, like its role in the job.
struct OwnClient {
  std::mutex mutex;
  int process = 0;  // a forked process has no client
  std::unique_ptr<ServerClient> client;
};
OwnClient& ThisClient() {
  // never destroyed, because code that runs at the exit of the process uses it
  static OwnClient* const own = new OwnClient;
  return *own;
}

void Leave() {
  OwnClient& own = ThisClient();
  if (own.process == getpid() && own.client != nullptr) own.client->Leave();
}

}  // namespace

absl::Status ServeJob(MakeUpdate make_update, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::optional<RoleCounts> roles, RolesOfEnvironment());
  ASSIGN_OR_RETURN(const bool tolerates_loss, ToleratesLoss());
  ASSIGN_OR_RETURN(const std::unique_ptr<ParameterServer> server,
                   ParameterServer::Create({.workers = roles ? roles->workers : 1,
                                            .tolerates_loss = tolerates_loss,
                                            .timeout = timeout,
                                            .interfaces = InterfacesOfEnvironment(),
                                            .make_update = std::move(make_update)}));
  ServerFacts facts{.listener = server->info(), .process = getpid()};
  CopyText(HostName(), facts.host, sizeof(facts.host));
  RETURN_IF_ERROR(JoinMpiAsServer(facts, timeout).status());
  const absl::Status status = server->Run();
  // Ranks may be gone, for which MPI_Finalize would wait.
  if (!status.ok() || tolerates_loss) MarkMpiFailed();
  return status;
}

absl::StatusOr<ServerClient*> ConnectToServersOfJob(absl::Duration timeout) {
  const ServersOfJob* const job = FindServersOfJob();
  if (job == nullptr) return nullptr;
  OwnClient& own = ThisClient();
  const std::lock_guard<std::mutex> lock(own.mutex);
  if (own.process == getpid()) return own.client.get();
  ASSIGN_OR_RETURN(const bool tolerates_loss, ToleratesLoss());
  std::vector<ServerAddress> addresses;
  for (const ServerFacts& server : job->servers) addresses.push_back({server.listener, server.host, server.process});
  ASSIGN_OR_RETURN(own.client, ServerClient::Connect(addresses, {.rank = job->worker,
                                                                 .workers = job->workers,
                                                                 .timeout = timeout,
                                                                 .tolerates_loss = tolerates_loss,
                                                                 .interfaces = InterfacesOfEnvironment(),
                                                                 .on_failure = MarkMpiFailed}));
  own.process = getpid();
  if (tolerates_loss) MarkMpiFailed();  // so that the end of this process does not wait for others
  AtProcessEnd(Leave);
  return own.client.get();
}

}  // namespace lockstep
