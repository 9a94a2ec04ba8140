// Communicators over MPI: the ranks that mpirun started. MPI introduces the ranks to each other. Then ranks on one host
// share memory and ranks on different hosts have TCP connections, and neither needs MPI. Alternatively, MPI also
// carries the messages between hosts: each group's progress thread uses only nonblocking calls. MPI's errors become
// absl::Status; MPI never ends the process.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/cache_file.h"
#include "runtime/comm/network/links.h"
#include "runtime/comm/routes/route.h"
#include "runtime/communicator.h"

namespace lockstep {

struct MpiOptions {
  Communicator::Options communicator;
  // The largest number of consecutive ranks that are treated as being on one host, so that one machine can test the
  // communication between hosts. 0: no limit.
  int max_group = 0;
  // The carrier of messages between hosts, equal on all ranks: TCP connections (socket_links.h), or MPI (mpi_links.h),
  // which supports networks that are faster than TCP.
  enum class BetweenHosts : int32_t { kTcp, kMpi };
  BetweenHosts between_hosts = BetweenHosts::kTcp;
  // The costs for the choice of routes between more than two hosts, equal on all ranks: the costs that were measured
  // when these hosts first formed a world (measure_network.h), or the defaults of NetworkCosts.
  enum class Routes : int32_t { kMeasured, kDefault };
  Routes routes = Routes::kMeasured;
  // The folder in which rank 0 keeps the measured costs; empty: they are not kept.
  std::string cache_folder = CacheFolder();
  // For tests: the route that is taken wherever possible, without measuring; and a function that wraps a rank's links.
  std::optional<Route> preferred_route = {};
  std::function<std::unique_ptr<Links>(std::unique_ptr<Links>)> around_links = {};
};

// Returns the communicator of this process's rank in MPI_COMM_WORLD, duplicated. Collective over the world; may be
// called several times. Initialises MPI with MPI_THREAD_MULTIPLE and finalises it when the process exits, unless
// another library (mpi4py) has initialised it. If then MPI carries messages between hosts, that level must have been
// provided. Without mpirun, this is a world of one rank, which needs no MPI library. In a job with parameter servers,
// this is the world of the workers (mpi_roles.h).
//
// TCP uses all network interfaces that are up, or those that the environment variable LOCKSTEP_INTERFACE names ("eth0",
// "ib,eth": prefixes of names, separated by commas).
absl::StatusOr<std::unique_ptr<Communicator>> CreateMpi(const MpiOptions& options = {});

// Returns the name and version of the MPI library, "Open MPI v4.1.4, ...". Does not need an initialised MPI. If there
// is no library, the error is that of LoadMpi (mpi_library.h).
absl::StatusOr<std::string> MpiLibraryVersion();

}  // namespace lockstep
