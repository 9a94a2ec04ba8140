// For which architecture PTX is made. For the compiler of kernels, and for people (`lockstep doctor`). Any thread.

#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

// The oldest GPUs that programs are compiled for: of compute capability 8.0 (Ampere). bazel/gpu_kernels.bzl has it too.
inline constexpr int kOldestCapability = 80;

// The architecture whose PTX is made for a GPU of `architecture` ("sm_90"): itself, or the newest before it that LLVM
// knows, as PTX runs on later GPUs than its own. InvalidArgument for a name of another form, and for one that is older
// than all that LLVM knows.
absl::StatusOr<std::string> PtxArchitectureFor(const std::string& architecture);

}  // namespace lockstep
