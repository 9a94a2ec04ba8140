// Links over an MPI communicator. The rules for callers are those of links.h. Every call here returns at once.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/mpi/mpi_library.h"
#include "runtime/comm/network/links.h"

namespace lockstep {

// Returns the Status of an MPI return code. `call` is the function's name.
absl::Status MpiStatus(int code, const char* call);

// Keeps the memory of an abandoned transfer or collective until MPI has completed it.
void KeepUntilDone(MpiRequest request, std::shared_ptr<void> memory);

// `comm` is borrowed by these links and all links made from them. It must return errors and have no other users.
// Requires MPI_THREAD_MULTIPLE.
std::unique_ptr<Links> CreateMpiLinks(MpiComm comm, std::vector<int> group_begins);

// Returns the number of MPI links in this process. MPI must not be finalised while there are any.
int LiveMpiLinks();

}  // namespace lockstep
