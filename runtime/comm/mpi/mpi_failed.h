// Tells the MPI code that the job has failed, for callers that do not use MPI themselves. Any thread.

#pragma once

namespace lockstep {

// Marks the job as failed. Then peers may be gone, and MPI_Finalize, which waits for all ranks, may never return. At
// the end of the process, other ranks get a moment to arrive; otherwise MPI_Finalize is not called.
void MarkMpiFailed();

}  // namespace lockstep
