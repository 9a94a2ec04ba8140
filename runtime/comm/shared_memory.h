// Communicators whose ranks are processes of one host, with no library between them: a process creates the world, its
// forked children join it. The MPI communicator (mpi.h) makes its groups of ranks on one host in the same way.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/comm/host/memory.h"
#include "runtime/communicator.h"

namespace lockstep {

class SharedMemoryWorld {
 public:
  // A world of n >= 1 ranks that no one has joined yet.
  static absl::StatusOr<SharedMemoryWorld> Create(int n);

  // This process becomes a rank. Each rank has to be joined once, by its own process: the creator or one forked by it
  // after Create. Returns when all ranks are there.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank, const Communicator::Options& options = {});

 private:
  SharedMemoryWorld(std::shared_ptr<Segment> control, int ranks) : control_(std::move(control)), ranks_(ranks) {}
  std::shared_ptr<Segment> control_;  // shared with the communicator
  int ranks_;
};

}  // namespace lockstep
