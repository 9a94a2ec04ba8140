// Communicators whose ranks are processes of one host, without a library between them: a process creates the world, and
// its forked children join it. The MPI communicator (mpi.h) creates its groups of ranks on one host in the same way.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/comm/host/memory.h"
#include "runtime/communicator.h"

namespace lockstep {

class SharedMemoryWorld {
 public:
  // Creates a world of n >= 1 ranks that no one has joined yet.
  static absl::StatusOr<SharedMemoryWorld> Create(int n);

  // Makes this process a rank. Each rank must be joined once, by its own process: the creator, or a process that it
  // forked after Create. Returns when all ranks have joined.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank, const Communicator::Options& options = {});

 private:
  SharedMemoryWorld(std::shared_ptr<Segment> control, int ranks) : control_(std::move(control)), ranks_(ranks) {}
  std::shared_ptr<Segment> control_;  // shared with the communicator
  int ranks_;
};

}  // namespace lockstep
