// The conformance suite of communicators, as a table of cases. A case is the part of one rank. A driver
// (in_process_test.cc and shared_memory_test.cc for threads and processes, mpi_main.cc under mpirun) makes a world,
// runs the case on all of its ranks, and counts them.

#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/communicator.h"

namespace lockstep {

struct ConformanceCase {
  std::string name;
  int min_ranks = 1;
  Communicator::Options options;
  // Runs one rank's part. Returns OK, or the failed check.
  std::function<absl::Status(Communicator&)> run;
  // True if the case mostly waits. Drivers run such cases in several worlds at a time.
  bool waits = false;
};

inline std::ostream& operator<<(std::ostream& out, const ConformanceCase& test) { return out << test.name; }

// Each case needs a world of its own, because some leave it in error.
std::vector<ConformanceCase> ConformanceCases();
// The cases that wait, and the others.
std::vector<ConformanceCase> WaitingCases();
std::vector<ConformanceCase> ComputingCases();

}  // namespace lockstep
