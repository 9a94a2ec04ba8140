// Communicators over MPI: the ranks that mpirun started. MPI introduces them to each other; ranks on one host then
// share memory, ranks on different hosts have TCP connections, and both need it no more. Or MPI carries what goes
// between hosts, too: each group's progress threads use nonblocking calls alone. MPI's errors become absl::Status; MPI
// never ends the process for us.

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
  // Treats ranks as being on one host only in runs of at most this many, so that one machine can test what happens
  // between hosts. 0: no limit.
  int max_group = 0;
  // What carries messages between hosts, equal on all ranks: TCP connections (socket_links.h), or MPI (mpi_links.h),
  // which knows networks that are faster than TCP where a cluster has them.
  enum class BetweenHosts : int32_t { kTcp, kMpi };
  BetweenHosts between_hosts = BetweenHosts::kTcp;
  // By what routes between more than two hosts are chosen, equal on all ranks: what the network takes, as it was
  // measured when these hosts first had a world (measure_network.h), or the defaults of NetworkCosts.
  enum class Routes : int32_t { kMeasured, kDefault };
  Routes routes = Routes::kMeasured;
  // Where what was measured is kept, of rank 0's; empty: nowhere.
  std::string cache_folder = CacheFolder();
  // Of tests: the route that is taken wherever it can be; then nothing is measured. And what is put around a rank's
  // links.
  std::optional<Route> preferred_route = {};
  std::function<std::unique_ptr<Links>(std::unique_ptr<Links>)> around_links = {};
};

// This process's rank of MPI_COMM_WORLD, duplicated. Collective over the world; may be called several times.
// Initialises MPI with MPI_THREAD_MULTIPLE unless somebody (mpi4py) has done so already, in which case that level must
// have been provided where MPI carries messages between hosts; what was initialised here is finalised when the process
// exits. Without mpirun this is a world of one rank. Where the job has parameter servers, this is the world of the
// workers (mpi_roles.h).
//
// TCP uses all network interfaces that are up, or those that the environment's LOCKSTEP_INTERFACE names ("eth0",
// "ib,eth": each perhaps without its last letters, separated by commas).
absl::StatusOr<std::unique_ptr<Communicator>> CreateMpi(const MpiOptions& options = {});

// What the MPI library calls itself, "Open MPI v4.1.4, ...". Needs no initialised MPI.
std::string MpiLibraryVersion();

}  // namespace lockstep
