// The main function of tests that draw graphs from seeds. Its flags say how many, and from which seed on.

#pragma once

#include <cstdint>

namespace lockstep {

// Reads --graphs=N and --first_seed=N into the variables, and runs all tests. Returns the exit code; 1 for another
// flag.
int RunTestsOfSeeds(int argc, char** argv, uint64_t& num_graphs, uint64_t& first_seed);

}  // namespace lockstep
