// The start and the end of MPI in this process, and collectives with a time limit, for all users of MPI. The state
// belongs to the process, like MPI itself. Any thread.

#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "runtime/comm/mpi/mpi_failed.h"
#include "runtime/comm/mpi/mpi_library.h"
#include "runtime/comm/mpi/mpi_links.h"

namespace lockstep {

// Opens MPI's library (mpi_library.h). Initialises MPI if it is not initialised, and then finalises it when the process
// exits.
absl::Status InitializeMpi();

// Waits for a nonblocking collective. `memory`, which it uses, is kept alive until the collective is complete.
absl::Status AwaitRequest(MpiRequest* request, std::shared_ptr<void> memory, absl::Duration limit, const char* call);

// Returns the T of all ranks, by rank.
template <typename T>
absl::StatusOr<std::vector<T>> GatherFacts(MpiComm comm, int size, const T& mine, absl::Duration limit) {
  struct Facts {
    T mine;
    std::vector<T> all;
  };
  auto facts = std::make_shared<Facts>(Facts{mine, std::vector<T>(size)});
  MpiRequest request = Mpi().request_null;
  const int code =
      Mpi().Iallgather(&facts->mine, sizeof(T), Mpi().byte, facts->all.data(), sizeof(T), Mpi().byte, comm, &request);
  RETURN_IF_ERROR(MpiStatus(code, "MPI_Iallgather"));
  RETURN_IF_ERROR(AwaitRequest(&request, facts, limit, "MPI_Iallgather"));
  return std::move(facts->all);
}

}  // namespace lockstep
