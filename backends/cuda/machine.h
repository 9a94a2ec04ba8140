// What a machine has for this backend: its GPUs, and NVIDIA's libraries. For people (`lockstep doctor`); nothing is
// compiled for it. Any thread.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/search.h"

namespace lockstep::cuda {

// A GPU that the driver shows; what programs are compiled for is a lockstep::GpuDescription.
struct VisibleGpu {
  std::string name;
  std::string uuid;          // as `nvidia-smi -L` has it, but for what it puts before: it tells GPUs of one name apart
  int capability_major = 0;  // 9.0: an H100 or H200
  int capability_minor = 0;
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  std::string code;   // the architecture whose PTX is made for it ("sm_90"); empty if none is,
  std::string unfit;  // and then why
};

// The GPUs that the driver in `places` shows this process, by number; an error if there is no driver, or no GPU.
absl::StatusOr<std::vector<VisibleGpu>> DescribeGpus(const SearchPlaces& places);

struct LibraryDescription {
  std::string name;
  std::string install;  // what installs it
  absl::Status status;  // why there is none; OK if there is
  LoadedFrom from;
};

// The driver, cuBLASLt, cuDNN, NVRTC for it, and NCCL that this backend would use, in this order.
std::vector<LibraryDescription> DescribeLibraries(const SearchPlaces& places);

}  // namespace lockstep::cuda
