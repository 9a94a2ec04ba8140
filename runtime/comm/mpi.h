// Communicators over MPI: the ranks that mpirun started. MPI introduces them to each other; ranks on one host then
// share memory and need it no more, and ranks on different hosts exchange messages through it, each group's progress
// threads by nonblocking calls alone. MPI's errors become absl::Status; MPI never ends the process for us.

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
};

// This process's rank of MPI_COMM_WORLD, duplicated. Collective over the world; may be called several times.
// Initialises MPI with MPI_THREAD_MULTIPLE unless somebody (mpi4py) has done so already, in which case between hosts
// that level must have been provided; what was initialised here is finalised when the process exits. Without mpirun
// this is a world of one rank.
absl::StatusOr<std::unique_ptr<Communicator>> CreateMpi(const MpiOptions& options = {});

// What the MPI library calls itself, "Open MPI v4.1.4, ...". Needs no initialised MPI.
std::string MpiLibraryVersion();

}  // namespace lockstep
