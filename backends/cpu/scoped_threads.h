// How many threads OpenMP uses for what oneDNN does on the calling thread, while this lives. oneDNN plans a primitive
// for the number that is set when it is created, and must find the same when it is executed.

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
