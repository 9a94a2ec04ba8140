#include "runtime/comm/mpi/mpi_calls.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/comm/mpi/mpi_files.h"
#include "runtime/comm/mpi/mpi_wait.h"
#include "runtime/process/clock.h"
#include "runtime/process/process_end.h"

namespace lockstep {
namespace {

constexpr absl::Duration kLastBarrier = absl::Seconds(2);
constexpr std::chrono::seconds kInitPatience(3);
// In a healthy job, a rank that evaluates or writes files after the others are done keeps them waiting.
constexpr std::chrono::seconds kFinalizePatience(30);

// True if a communicator has failed. Then peers may be gone, and MPI_Finalize, which waits for all ranks, may never
// return. A state of the process, like MPI itself.
std::atomic<bool>& WorldFailed() {
  static std::atomic<bool> failed{false};
  return failed;
}

// The process that initialised MPI, and finalises it. A forked process does not.
std::atomic<int>& OwnerOfMpi() {
  static std::atomic<int> process{0};
  return process;
}

// Returns true if all ranks of a failed world have reached their end, and so MPI_Finalize.
bool AllAreThere() {
  MpiRequest request = Mpi().request_null;
  Mpi().Comm_set_errhandler(Mpi().comm_world, Mpi().errors_return);
  return Mpi().Ibarrier(Mpi().comm_world, &request) == kMpiSuccess &&
         AwaitRequest(&request, nullptr, kLastBarrier, "MPI_Ibarrier").ok();
}

void Finalize() {
  if (getpid() != OwnerOfMpi()) return;
  int finalized = 0;
  Mpi().Finalized(&finalized);
  if (finalized || LiveMpiLinks() > 0)
    return;  // a communicator that was never destroyed may still use MPI in its thread
  if (WorldFailed() && !AllAreThere()) {
    RemoveMpiFiles();
    return;
  }
  const MpiWait wait("MPI_Finalize", kFinalizePatience);
  Mpi().Finalize();
}

}  // namespace

void MarkMpiFailed() { WorldFailed() = true; }

absl::Status AwaitRequest(MpiRequest* request, std::shared_ptr<void> memory, absl::Duration limit, const char* call) {
  const absl::Duration end = SteadyNow() + limit;
  for (int complete = 0; !complete;) {
    RETURN_IF_ERROR(MpiStatus(Mpi().Test(request, &complete, Mpi().no_status()), call));
    if (complete) break;
    if (SteadyNow() >= end) {
      KeepUntilDone(*request, std::move(memory));
      return ErrorStream(absl::StatusCode::kDeadlineExceeded)
             << call << ": not all ranks have created their communicator within " << absl::FormatDuration(limit);
    }
    absl::SleepFor(absl::Microseconds(100));
  }
  return absl::OkStatus();
}

absl::Status InitializeMpi() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  RETURN_IF_ERROR(OpenMpi());
  int finalized = 0, initialized = 0;
  Mpi().Finalized(&finalized);
  if (finalized) return FailedPrecondition() << "MPI is finalised already";
  if (OwnerOfMpi() != 0 && OwnerOfMpi() != getpid()) {
    return FailedPrecondition() << "this process (" << getpid() << ") was forked from process " << OwnerOfMpi()
                                << ", which is an MPI rank; a forked process is not";
  }
  Mpi().Initialized(&initialized);
  if (initialized) return absl::OkStatus();
  const MpiWait wait("MPI_Init", kInitPatience);
  int provided = 0;
  RETURN_IF_ERROR(MpiStatus(Mpi().Init_thread(nullptr, nullptr, Mpi().thread_multiple, &provided), "MPI_Init_thread"));
  OwnerOfMpi() = getpid();
  AtProcessEnd(Finalize);
  return absl::OkStatus();
}

}  // namespace lockstep
