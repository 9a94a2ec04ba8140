// Describes the GPUs and NVIDIA libraries of a machine for users (`lockstep doctor`); nothing is compiled with it. Any
// thread may call it.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_search.h"

namespace lockstep::cuda {

// A GPU that the driver shows. Programs are compiled for a lockstep::GpuDescription.
struct VisibleGpu {
  std::string name;
  std::string uuid;          // as in `nvidia-smi -L`, without its prefix; distinguishes GPUs with the same name
  int capability_major = 0;  // 9.0: an H100 or H200
  int capability_minor = 0;
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  std::string code;   // "sm_90 (PTX 7.8, for a driver of CUDA 11.8 or later)": of its kernels; empty if not supported
  std::string unfit;  // the reason if it is not supported
};

// Returns the GPUs that the driver in `places` shows to this process, by number. Returns an error if there is no driver
// or no GPU.
absl::StatusOr<std::vector<VisibleGpu>> DescribeGpus(const SearchPlaces& places);

struct LibraryDescription {
  std::string name;
  std::string install;  // the command that installs it
  absl::Status status;  // the reason if it was not found
  LoadedFrom from;
};

// Returns the driver, cuBLASLt, cuDNN, the NVRTC for this cuDNN, and NCCL, in this order, as this backend would use
// them.
std::vector<LibraryDescription> DescribeLibraries(const SearchPlaces& places);

}  // namespace lockstep::cuda
