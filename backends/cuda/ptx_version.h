// The version of PTX that a kernel's text states, and the drivers that read it. A driver refuses PTX that is newer than
// itself. LLVM chooses the version by the architecture (backends/codegen/ptx_architecture.h). Any thread.

#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/library.h"

namespace lockstep::cuda {

// Returns the version in a text such as ".version 7.8\n.target sm_90"; 0.0 if it states none.
Version PtxVersionOf(std::string_view text);

// Returns the first version of CUDA whose drivers read this version of PTX, which is 7.0 or later.
Version CudaThatReads(const Version& ptx);

// Returns "PTX 7.8, for a driver of CUDA 11.8 or later".
std::string DescribePtx(const Version& ptx);

// Returns an error if the driver is too old for the text. The error names the versions of PTX and of both drivers.
absl::Status CheckReads(const DriverApi& driver, std::string_view text);

}  // namespace lockstep::cuda
