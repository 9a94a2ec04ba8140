// The state of a job's workers, as a server knows it: who is present, has left, or died. Used by the server's thread.

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

  // Returns true if it may still push.
  bool counts() const { return life == Life::kExpected || life == Life::kHere; }
};

struct Workers {
  std::vector<Worker> all;  // by rank
  bool tolerates_loss = false;

  int size() const { return static_cast<int>(all.size()); }
  const Worker& operator[](int rank) const { return all[static_cast<size_t>(rank)]; }
  Worker& operator[](int rank) { return all[static_cast<size_t>(rank)]; }
  std::string Name(int rank) const;  // "worker 1 (process 4711 on host b)"
  // Returns the description of a worker for a rank that waits for it: its name, and "stopped by a signal", "has left",
  // …
  std::string Describe(int rank) const;
  // A worker that left without being excluded. Workers that wait for all workers fail with its name. -1: there is none.
  int MissingForever() const;
};

}  // namespace lockstep
