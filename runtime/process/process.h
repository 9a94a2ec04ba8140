// What a rank can know of the processes of its host: which live, which are stopped, and whether this one was forked.
// Any thread.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

// This machine's name.
std::string HostName();

struct ProcessFacts {
  uint64_t start = 0;    // when it started, in the kernel's ticks; 0: there is no such process, or only its remains
  bool stopped = false;  // by a signal or a debugger
};

// Nothing if that cannot be told, as when this process has no file descriptor left: that is no proof of a death.
std::optional<ProcessFacts> FactsOfProcess(int id);

// Whether process `id` has ended for certain. `start` is when it started, 0 if that is not known.
bool HasEnded(int id, uint64_t start);

// How many forks lie between the process in which the program began and this one. A communicator made under another
// number belongs to another process, which uses it still.
uint32_t ForkGeneration();

}  // namespace lockstep
