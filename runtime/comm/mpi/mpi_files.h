// The files in /dev/shm through which Open MPI's ranks of one host reach each other's memory. MPI_Finalize removes
// them, or else mpirun's daemon on the host; where a host was cut off from its job neither does, and nobody would.

#pragma once

#include <string>

namespace lockstep {

// Removes those that this process has mapped, its own and its peers', which keep what they have mapped. For a process
// that ends without MPI_Finalize. `prefix` is what their paths begin with.
void RemoveMpiFiles(const std::string& prefix = "/dev/shm/vader_segment.");

}  // namespace lockstep
