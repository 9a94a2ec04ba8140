// What every Communicator has to do, as a table of cases. A case is what one rank does; a driver (conformance_test.cc
// for threads and processes, conformance_mpi_main.cc under mpirun) makes a world, runs the case on all of its ranks,
// and counts them.

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
  // Runs one rank's part. OK, or what was wrong.
  std::function<absl::Status(Communicator&)> run;
  // It waits and hardly computes: drivers run it in several worlds at a time.
  bool waits = false;
};

inline std::ostream& operator<<(std::ostream& out, const ConformanceCase& test) { return out << test.name; }

// Each case needs a world of its own: some leave it in error.
std::vector<ConformanceCase> ConformanceCases();
// Those of them that wait, and the others.
std::vector<ConformanceCase> WaitingCases();
std::vector<ConformanceCase> ComputingCases();

}  // namespace lockstep
