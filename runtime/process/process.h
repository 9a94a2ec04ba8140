// Information about the processes of this host: which are alive, which are stopped, if this one was forked, and how
// many cores it has. Any thread.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

// Returns this machine's name.
std::string HostName();

struct ProcessFacts {
  uint64_t start = 0;    // start time in kernel ticks; 0: there is no such process, or it is a zombie
  bool stopped = false;  // by a signal or a debugger
};

// Returns nothing if the facts are unknown, for example if this process has no free file descriptor. This does not mean
// that the process is dead.
std::optional<ProcessFacts> FactsOfProcess(int id);

// Returns true if process `id` has certainly ended. `start` is its start time, 0 if unknown.
bool HasEnded(int id, uint64_t start);

// Returns the number of forks between the first process of the program and this one. A communicator that was made under
// another number belongs to another process, which still uses it.
uint32_t ForkGeneration();

// Returns the number of cores on which the calling thread may run.
int AvailableCores();

}  // namespace lockstep
