// Selects the backend in tests that apply to all backends. The tests are started once per backend, with
// --backend=<name>.

#pragma once

#include <string>

#include "backends/backend.h"

namespace lockstep {

// Returns the backend that the flag --backend names: "cpu" by default; "fake-cuda" is the cuda backend on fake GPUs.
// Ends the process if there is no such backend.
const Backend& TestedBackend();

// Returns what the tested backend lacks on this machine, such as a GPU, in the backend's words; empty if it can run.
std::string WhyItCannotRun();

// True if the backend runs on real or fake GPUs. Kernels there cannot report the position of a wrong index in a tensor,
// and CompileOptions::threads has no effect.
bool IsGpu();

// True if the values of two ranks are reduced in rank order, as the interpreter does. NCCL does not; it is used if each
// rank has its own GPU, but not if ranks share one.
bool ReducesInRankOrder();

// True if the GPUs are fakes, which run a GPU's threads one after the other on the host and are slow for large tensors.
bool IsFake();

// True if `status` says that the tested backend has no kernel for an op, or NCCL no such reduction. Always false for
// the CPU, which has all kernels; missing_kernels_test checks what other backends lack.
bool LacksKernel(const absl::Status& status);

}  // namespace lockstep
