// The workers of a job as a server knows them: who is there, who has left, who died. Used by the server's thread.

#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct Worker {
  enum class Life { kExpected, kHere, kLeft, kDied };
  Life life = Life::kExpected;
  std::string host;
  int process = 0;
  bool is_on_this_host = false;

  // Whether it may still push.
  bool counts() const { return life == Life::kExpected || life == Life::kHere; }
};

struct Workers {
  std::vector<Worker> all;  // by rank
  bool tolerates_loss = false;

  int size() const { return static_cast<int>(all.size()); }
  const Worker& operator[](int rank) const { return all[static_cast<size_t>(rank)]; }
  Worker& operator[](int rank) { return all[static_cast<size_t>(rank)]; }
  std::string Name(int rank) const;  // "worker 1 (process 4711 on host b)"
  // What somebody who waits for it should know: its name, and "stopped by a signal", "has left", …
  std::string Describe(int rank) const;
  // A worker that those who wait for all wait for in vain: it has left, and is not left out. -1: there is none.
  int MissedForGood() const;
};

}  // namespace lockstep
