// The roles in an MPI job with parameter servers (decisions/0039): the first N of N + S ranks are workers, the others
// servers. The environment of all ranks contains LOCKSTEP_WORKERS=N and LOCKSTEP_SERVERS=S. If the latter is missing or
// 0, all ranks are workers and nothing here has an effect. Otherwise workers have a world of their own: CreateMpi
// (mpi.h) returns the world of the N workers. MPI introduces workers and servers to each other, once in a process.

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

// Reads the environment. Returns nothing if there are no servers. An error names the variable.
absl::StatusOr<std::optional<RoleCounts>> RolesOfEnvironment();

// The facts that a server sends to the workers. Plain data, sent as bytes.
struct ServerFacts {
  ListenerInfo listener;
  char host[kHostBytes] = {};
  int32_t process = 0;
};

// Joins the job as a server. Collective with CreateMpi on the workers. Returns this server's number.
absl::StatusOr<int> JoinMpiAsServer(const ServerFacts& facts, absl::Duration limit);

struct ServersOfJob {
  int worker = 0, workers = 1;  // the number of this process among the workers, and their number
  std::vector<ServerFacts> servers;
};

// Returns the servers of the job, for a worker that has called CreateMpi; null if there are none.
const ServersOfJob* FindServersOfJob();

}  // namespace lockstep
