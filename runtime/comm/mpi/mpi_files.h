// The files in /dev/shm through which Open MPI's ranks of one host reach each other's memory. Either MPI_Finalize or
// mpirun's daemon on the host removes them. If the host was cut off from its job, neither does.

#pragma once

#include <string>

namespace lockstep {

// Removes the files that this process has mapped, its own and its peers'. Existing mappings stay valid. For a process
// that ends without MPI_Finalize. `prefix` is the beginning of their paths.
void RemoveMpiFiles(const std::string& prefix = "/dev/shm/vader_segment.");

}  // namespace lockstep
