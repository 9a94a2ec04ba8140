#include "runtime/comm/conformance/watchdog.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "runtime/process/clock.h"

namespace lockstep {

absl::Duration Watchdog::DefaultLimit() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return absl::Minutes(4);
#else
  return absl::Seconds(80);
#endif
}

Watchdog::Watchdog(absl::Duration limit) : limit_(limit), thread_([this] { Watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::Begin(int rank, const std::string& test) {
  std::lock_guard<std::mutex> lock(mutex_);
  running_[rank] = {test, SteadyNow() + limit_};
}

void Watchdog::End(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  running_.erase(rank);
}

void Watchdog::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return stop_; })) {
    bool hangs = false;
    for (const auto& [rank, running] : running_) {
      if (SteadyNow() < running.until) continue;
      hangs = true;
      std::fprintf(stderr, "rank %d: %s hangs: it has taken more than %s\n", rank, running.test.c_str(),
                   absl::FormatDuration(limit_).c_str());
    }
    if (hangs) _exit(kExitCode);
  }
}

}  // namespace lockstep
