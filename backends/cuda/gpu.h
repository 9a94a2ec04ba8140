// GPUs by name: what is known of a model without having one, so that programs can be compiled for it anywhere; and the
// ones that are there.

#pragma once

#include <string>
#include <string_view>

#include "backends/backend.h"
#include "core/status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

// A model ("h200") or an architecture ("sm_90", of which its largest model is assumed). InvalidArgument lists both.
absl::StatusOr<GpuDescription> GpuByName(std::string_view name);

// The first GPU of this machine. Calls cuInit.
absl::StatusOr<GpuDescription> GpuOfThisMachine(const DriverApi& driver);

// Its compute capability as a number: 90 for 9.0.
absl::StatusOr<int> CapabilityOf(const DriverApi& driver, CUdevice gpu);

// Whether code for `target` runs on the device: an error says what each is, and names the program.
absl::Status CheckRunsOn(const CudaDevice& device, const GpuDescription& target, std::string_view program);

// "NVIDIA H200, 132 multiprocessors": equal for GPUs on which the libraries choose the same kernels.
std::string DescribeGpu(const CudaDevice& device);

}  // namespace lockstep::cuda
