// Reports long waits in MPI_Init and MPI_Finalize, which wait for all ranks, without a limit and without messages. An
// object of this class, while it lives, prints once on stderr for whom the call waits, if the wait is longer than its
// caller expects. It knows the ranks of its own host: each has a socket in the kernel's abstract namespace during the
// call, so no files remain. It has a thread of its own.

#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep {

class MpiWait {
 public:
  // `call` is the MPI function's name; it may wait for `patience` without a message. Without mpirun, there are no other
  // ranks, and this does nothing.
  MpiWait(const char* call, std::chrono::seconds patience);
  ~MpiWait();
  MpiWait(const MpiWait&) = delete;
  MpiWait& operator=(const MpiWait&) = delete;

 private:
  void Watch();
  // Returns "rank 1, rank 3", or the number of missing ranks if their names are unknown.
  std::string Missing() const;

  const std::string call_;
  const std::chrono::seconds patience_;
  std::string job_;
  int rank_ = -1, size_ = 0, local_size_ = 0;  // from mpirun's environment
  int socket_ = -1;
  std::mutex mutex_;  // guards done_
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace lockstep
