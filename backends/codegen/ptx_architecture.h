// Chooses the architecture and the version of PTX. Used by the compiler of kernels and by `lockstep doctor`. Any
// thread may call it.

#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

// The oldest GPUs that programs are compiled for: compute capability 8.0 (Ampere). bazel/gpu_kernels.bzl has the same
// number.
inline constexpr int kOldestCapability = 80;

// Returns the architecture of the PTX for a GPU of `architecture` ("sm_90"): the same, or the newest before it that
// LLVM knows, because PTX runs on GPUs later than its own. Returns InvalidArgument for a name of another form, and for
// one older than all that LLVM knows.
absl::StatusOr<std::string> PtxArchitectureFor(const std::string& architecture);

// Returns the PTX of a module without kernels for a GPU of this architecture. It states the version of PTX.
absl::StatusOr<std::string> EmptyPtxFor(const std::string& architecture);

}  // namespace lockstep
