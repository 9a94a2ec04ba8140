// What others than MPI's users know of MPI: that the job has failed. Any thread.

#pragma once

namespace lockstep {

// From now on peers may be gone, and MPI_Finalize, which waits for all, may never return: the end of the process gives
// it a moment, and does without it then.
void MarkMpiFailed();

}  // namespace lockstep
