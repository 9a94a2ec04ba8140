// Links over an MPI communicator. See links.h for who may call what; every call here returns at once.

#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/network/links.h"

namespace lockstep {

// The Status of an MPI return code; `call` is the function's name.
absl::Status MpiStatus(int code, const char* call);

// Keeps what a transfer or a collective uses that was given up before MPI was done with it, until MPI is.
void KeepUntilDone(MPI_Request request, std::shared_ptr<void> memory);

// `comm` is borrowed by these links and all that come of them, returns errors, and is used by nobody else. Requires
// MPI_THREAD_MULTIPLE.
std::unique_ptr<Links> CreateMpiLinks(MPI_Comm comm, std::vector<int> group_begins);

// How many MPI links exist in this process: while there are any, MPI must not be finalised.
int LiveMpiLinks();

}  // namespace lockstep
