// An introduction without MPI: rank 0 listens at an address that all ranks know, the others connect to it, and it sends
// each of them what all have said. The connections last as long as the introduction.
//
// With a secret, rank 0 and each other rank prove to each other that they know it, before either believes the other: by
// HMAC-SHA256 over random numbers of both and all that the other rank says of itself. What is said afterwards is
// neither encrypted nor signed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/comm/world/introduction.h"

namespace lockstep {

struct Rendezvous {
  static constexpr size_t kMostJobBytes = 63;
  int rank = 0, size = 1;
  std::string host;         // rank 0's: a name or an address
  uint16_t port = 0;        // at which rank 0 listens, on all interfaces
  std::string job = {};     // equal on the ranks of a job, which it tells from others at the same port
  std::string secret = {};  // of the job; empty: ranks prove nothing
  // If not empty: a file of a file system that the ranks share. Rank 0 listens at any port, and writes the host, or its
  // own name if that is empty, and the port into the file. It removes the file when all have come.
  std::string file = {};
};

// Returns the place at which this process's ranks meet according to the environment, as torchrun, accelerate and
// Kubernetes' PyTorchJob set it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The error names a variable that is
// missing or no such number. Where torchrun's agent listens at MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE=True),
// ranks meet at the next port. TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT are the job.
//
// Without RANK and WORLD_SIZE, tasks of srun meet on the first host of their step, at a port that follows from the
// numbers of the job and the step, or at MASTER_ADDR and MASTER_PORT. Returns nothing for tasks that srun has started
// as ranks of MPI (srun --mpi=pmix), and without srun.
//
// LOCKSTEP_RENDEZVOUS_FILE is the file. The secret is that of the environment (proof.h).
absl::StatusOr<std::optional<Rendezvous>> RendezvousOfEnvironment();

// Returns the first name of a list of Slurm, such as "n7" of "n[7-9,12],login".
std::string FirstOfNodes(std::string_view nodes);

// Meets the other ranks. Ranks may come in any order, and rank 0 may be the last. Waits for at most `limit`; then the
// error, DeadlineExceeded on all ranks that have met, names those that have not come. Other errors: rank 0 cannot
// listen, as another program does; the host has no address; what listens there is no rank 0 of Lockstep; another
// process of the job has this rank; the numbers of ranks differ, or the jobs or versions do; the secrets differ, or
// only one side has one. Connections that say nothing, or something else, are ignored, and a process that proves
// nothing is turned away, without harm to the others. Each Gather waits for at most `limit`, too, and names the rank
// that has left or does not answer.
absl::StatusOr<std::unique_ptr<Introduction>> Meet(const Rendezvous& place, absl::Duration limit);

}  // namespace lockstep
