// Ends a test program in which a rank hangs, and names the rank and the case. Bazel would only end it after minutes,
// without names. Ranks may be threads of the process, or the process itself.

#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace lockstep {

class Watchdog {
 public:
  // Returns the time limit of one rank's part of a case.
  static absl::Duration DefaultLimit();

  explicit Watchdog(absl::Duration limit = DefaultLimit());
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The rank is in a case between these calls. If it takes longer than the limit, the program ends with exit code
  // kExitCode.
  void Begin(int rank, const std::string& test);
  void End(int rank);

  static constexpr int kExitCode = 97;

 private:
  struct Running {
    std::string test;
    absl::Duration until;
  };
  void Watch();

  const absl::Duration limit_;
  std::mutex mutex_;  // guards the following members
  std::condition_variable changed_;
  std::map<int, Running> running_;  // by rank
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep
