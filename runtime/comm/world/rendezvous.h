// An introduction without MPI: rank 0 listens at an address that all ranks know, the others connect to it, and it sends
// each of them what all have said. The connections last as long as the introduction.
//
// With a secret, rank 0 and each other rank prove to each other that they know it, before either believes the other: by
// HMAC-SHA256 over random numbers of both and all that the other rank says of itself. What is said afterwards is
// neither encrypted nor signed.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/comm/world/introduction.h"

namespace lockstep {

struct Rendezvous {
  int rank = 0, size = 1;
  std::string host;      // rank 0's: a name or an address
  uint16_t port = 0;     // at which rank 0 listens, on all interfaces
  std::string job = {};  // equal on the ranks of a job, which it tells from others at the same port; at most 63 bytes
  std::string secret = {};  // of the job; empty: ranks prove nothing
};

// Returns the place at which this process's ranks meet according to the environment, as torchrun, accelerate and
// Kubernetes' PyTorchJob set it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Returns nothing if neither RANK nor
// WORLD_SIZE is set. The error names a variable that is missing or no such number. Where torchrun's agent listens at
// MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE=True), ranks meet at the next port. TORCHELASTIC_RUN_ID and
// TORCHELASTIC_RESTART_COUNT are the job. The secret is that of the environment (proof.h).
absl::StatusOr<std::optional<Rendezvous>> RendezvousOfEnvironment();

// Meets the other ranks. Ranks may come in any order, and rank 0 may be the last. Waits for at most `limit`; then the
// error, DeadlineExceeded on all ranks that have met, names those that have not come. Other errors: rank 0 cannot
// listen, as another program does; the host has no address; what listens there is no rank 0 of Lockstep; another
// process of the job has this rank; the numbers of ranks differ, or the jobs or versions do; the secrets differ, or
// only one side has one. Connections that say nothing, or something else, are ignored, and a process that proves
// nothing is turned away, without harm to the others. Each Gather waits for at most `limit`, too, and names the rank
// that has left or does not answer.
absl::StatusOr<std::unique_ptr<Introduction>> Meet(const Rendezvous& place, absl::Duration limit);

}  // namespace lockstep
