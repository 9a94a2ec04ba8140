// For tests that hold for every backend: which one they run on. They are started once for each, with --backend=<name>.

#pragma once

#include <string>

#include "backends/backend.h"

namespace lockstep {

// The backend that the flag --backend names; "cpu" if it is not given; "fake-cuda" is the cuda backend on fake
// GPUs. Ends the process if there is none of that name.
const Backend& TestedBackend();

// What the tested backend lacks to run on this machine, such as a GPU, in its own words; empty if it runs.
std::string WhyItCannotRun();

// Whether it is on GPUs, fake ones or real ones: kernels there cannot say where in a tensor an index was wrong, and
// CompileOptions::threads changes nothing.
bool IsGpu();

// Whether two ranks' values are reduced as the interpreter does it, in the order of ranks. NCCL does not; ranks that
// have a GPU each use it, ranks that share one do not.
bool ReducesInRankOrder();

// Whether the GPUs are fake ones, whose threads take turns on the host's: what is large takes long there.
bool IsFake();

// Whether that is what the tested backend says of an op for which it has no kernel, or NCCL no reduction. Never so of
// the CPU's, which has all; which others may lack is what missing_kernels_test asks.
bool LacksKernel(const absl::Status& status);

}  // namespace lockstep
