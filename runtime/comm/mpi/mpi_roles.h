// The roles of an MPI job with parameter servers (decisions/0039): of N + S ranks the first N are workers, the others
// servers. The environment says so on all ranks, LOCKSTEP_WORKERS=N and LOCKSTEP_SERVERS=S; without the latter, or
// where that is 0, all ranks are workers, and nothing here does anything. Workers then have a world of their own:
// CreateMpi (mpi.h) gives them that of the N. MPI introduces workers and servers to each other, once in a process.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/comm/host/control_block.h"
#include "runtime/comm/network/sockets.h"

namespace lockstep {

struct RoleCounts {
  int workers = 0, servers = 0;
};

// Of the environment; nothing if there are no servers. An error names the variable.
absl::StatusOr<std::optional<RoleCounts>> RolesOfEnvironment();

// What a server tells the workers of itself. Plain data, which travels as it is.
struct ServerFacts {
  SocketPlace place;
  char host[kHostBytes] = {};
  int32_t process = 0;
};

// Joins the job as a server. Collective with CreateMpi on the workers. Returns this server's number.
absl::StatusOr<int> JoinMpiAsServer(const ServerFacts& facts, absl::Duration limit);

struct ServersOfJob {
  int worker = 0, workers = 1;  // this process among the workers
  std::vector<ServerFacts> servers;
};

// What this process, a worker that has called CreateMpi, knows of the servers; null if there are none.
const ServersOfJob* FindServersOfJob();

}  // namespace lockstep
