// Communicators over MPI: the ranks that mpirun started. MPI introduces them to each other; ranks on one host then
// share memory, ranks on different hosts have TCP connections, and both need it no more. Or MPI carries what goes
// between hosts, too: each group's progress threads use nonblocking calls alone. MPI's errors become absl::Status; MPI
// never ends the process for us.

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
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
};

// This process's rank of MPI_COMM_WORLD, duplicated. Collective over the world; may be called several times.
// Initialises MPI with MPI_THREAD_MULTIPLE unless somebody (mpi4py) has done so already, in which case that level must
// have been provided where MPI carries messages between hosts; what was initialised here is finalised when the process
// exits. Without mpirun this is a world of one rank.
//
// TCP uses all network interfaces that are up, or those that the environment's LOCKSTEP_INTERFACE names ("eth0",
// "ib,eth": each perhaps without its last letters, separated by commas).
absl::StatusOr<std::unique_ptr<Communicator>> CreateMpi(const MpiOptions& options = {});

// What the MPI library calls itself, "Open MPI v4.1.4, ...". Needs no initialised MPI.
std::string MpiLibraryVersion();

}  // namespace lockstep
