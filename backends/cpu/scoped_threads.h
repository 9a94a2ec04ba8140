// Sets the number of OpenMP threads for oneDNN on the calling thread during its lifetime. oneDNN plans a primitive for
// the number that is set when it is created; the same number must be set when it is executed.

#pragma once

#include <omp.h>

namespace lockstep::cpu {

class ScopedThreads {
 public:
  explicit ScopedThreads(int threads) : before_(omp_get_max_threads()), differs_(threads != before_) {
    if (differs_) omp_set_num_threads(threads);
  }
  ~ScopedThreads() {
    if (differs_) omp_set_num_threads(before_);
  }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  const int before_;
  const bool differs_;
};

}  // namespace lockstep::cpu
