// GPUs by name: the data of a model, so that programs can be compiled for it on any machine; and the GPUs of this
// machine.

#pragma once

#include <string>
#include <string_view>

#include "backends/backend.h"
#include "core/status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace lockstep::cuda {

// Returns a model ("h200"), or the largest model of an architecture ("sm_90"). Returns InvalidArgument, with a list of
// both, for other names.
absl::StatusOr<GpuDescription> GpuByName(std::string_view name);

// Returns the first GPU of this machine. Calls cuInit.
absl::StatusOr<GpuDescription> GpuOfThisMachine(const DriverApi& driver);

// Returns the compute capability as a number: 90 for 9.0.
absl::StatusOr<int> CapabilityOf(const DriverApi& driver, CUdevice gpu);

// Returns an error if code for `target` does not run on the device. The error describes both and names the program.
absl::Status CheckRunsOn(const CudaDevice& device, const GpuDescription& target, std::string_view program);

// Returns a text such as "NVIDIA H200, 132 multiprocessors". It is equal for GPUs on which the libraries choose the
// same kernels.
std::string DescribeGpu(const CudaDevice& device);

}  // namespace lockstep::cuda
