// MPI_Init and MPI_Finalize wait for all ranks, cannot be bounded, and say nothing. While one of these lives, it says
// on stderr, once, for whom a call waits, if that takes longer than its caller finds normal. It knows the ranks of its
// own host: each has a socket in the kernel's abstract namespace while it is in the call, so nothing is left behind. It
// has a thread of its own.

#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep {

class MpiWait {
 public:
  // `call` is the MPI function's name; it may wait for `patience` in silence. Without mpirun there is nobody to wait
  // for, and this does nothing.
  MpiWait(const char* call, std::chrono::seconds patience);
  ~MpiWait();
  MpiWait(const MpiWait&) = delete;
  MpiWait& operator=(const MpiWait&) = delete;

 private:
  void Watch();
  // "rank 1, rank 3", or how many are missing where they cannot be told.
  std::string Missing() const;

  const std::string call_;
  const std::chrono::seconds patience_;
  std::string job_;
  int rank_ = -1, size_ = 0, local_size_ = 0;  // as mpirun says
  int socket_ = -1;
  std::mutex mutex_;  // guards done_
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace lockstep
