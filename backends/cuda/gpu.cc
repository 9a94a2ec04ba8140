#include "backends/cuda/gpu.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "backends/codegen/ptx_architecture.h"
#include "core/attributes.h"

namespace lockstep::cuda {
namespace {

struct Model {
  std::string_view name;
  const char* full_name;
  int capability;
  int multiprocessors;
  uint64_t gibibytes;
  double gigabytes_per_second;          // of a copy, read and written
  std::array<double, 4> tera_a_second;  // operations, by Arithmetic
  bool is_measured;                     // the bytes, TF32 and 16 bits; everything else is from NVIDIA's data sheets
};

// The largest model of an architecture comes first.
constexpr Model kModels[] = {
    {"a100", "NVIDIA A100", 80, 108, 80, 2039, {19.5, 9.7, 156, 312}, false},
    {"l40s", "NVIDIA L40S", 89, 142, 48, 864, {91.6, 1.4, 183, 362}, false},
    {"h200", "NVIDIA H200", 90, 132, 141, 4300, {67, 34, 400, 790}, true},
    // With the H200's multiprocessors, and a copy as measured (docs/gpu-h100.md).
    {"h100", "NVIDIA H100", 90, 132, 80, 2930, {67, 34, 400, 790}, true},
};

Ceilings CeilingsOf(const Model& model) {
  Ceilings ceilings{
      .machine = std::string(model.full_name) + (model.is_measured ? ", measured on one" : ", by its data sheet"),
      .bytes_per_second = 1e9 * model.gigabytes_per_second};
  for (size_t i = 0; i < model.tera_a_second.size(); ++i)
    ceilings.operations_per_second[i] = 1e12 * model.tera_a_second[i];
  return ceilings;
}

// Of the compute capabilities from 8.0 on, those of NVIDIA's data-centre GPUs for simulations have a fast f64: A100,
// H100 and H200, B200.
bool HasSlowF64(int capability) { return capability != 80 && capability != 90 && capability != 100; }

std::string ArchitectureOf(int capability) { return "sm_" + std::to_string(capability); }

GpuDescription Describe(const Model& model) {
  return {.name = model.full_name,
          .architecture = ArchitectureOf(model.capability),
          .capability = model.capability,
          .multiprocessors = model.multiprocessors,
          .memory_bytes = model.gibibytes << 30,
          .slow_f64 = HasSlowF64(model.capability),
          .ceilings = CeilingsOf(model)};
}

}  // namespace

absl::StatusOr<GpuDescription> GpuByName(std::string_view name) {
  const auto* model = std::find_if(std::begin(kModels), std::end(kModels), [&](const Model& one) {
    return one.name == name || ArchitectureOf(one.capability) == name;
  });
  if (model != std::end(kModels)) return Describe(*model);
  ErrorStream error = InvalidArgument() << "isa is " << Quoted(name) << ", expected a GPU: ";
  for (const Model& one : kModels) error << one.name << " (" << ArchitectureOf(one.capability) << "), ";
  return error << "or empty for the GPU of this machine";
}

absl::StatusOr<int> CapabilityOf(const DriverApi& driver, CUdevice gpu) {
  int major = 0, minor = 0;
  const auto read = [&](int& value, CUdevice_attribute attribute) {
    return driver.Check(driver.DeviceGetAttribute(&value, attribute, gpu), "cuDeviceGetAttribute");
  };
  RETURN_IF_ERROR(read(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  RETURN_IF_ERROR(read(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  return 10 * major + minor;
}

absl::Status CheckRunsOn(const CudaDevice& device, const GpuDescription& target, std::string_view program) {
  ASSIGN_OR_RETURN(const int capability, CapabilityOf(device.api(), device.gpu()));
  if (capability >= target.capability) return absl::OkStatus();
  return FailedPrecondition() << "@" << program << " is compiled for " << target.name << " (" << target.architecture
                              << "), and this rank's GPU, " << DescribeGpu(device) << ", is "
                              << ArchitectureOf(capability)
                              << ", which cannot run it: isa selects the GPU to compile for, which is the first GPU of "
                              << "the machine if isa is empty";
}

std::string DescribeGpu(const CudaDevice& device) {
  const DriverApi& api = device.api();
  std::array<char, 128> name = {};
  int multiprocessors = 0;
  const bool known =
      api.DeviceGetName(name.data(), name.size() - 1, device.gpu()) == CUDA_SUCCESS &&
      api.DeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device.gpu()) == CUDA_SUCCESS;
  if (!known) return "a GPU that the driver does not describe";
  return std::string(name.data()) + ", " + std::to_string(multiprocessors) + " multiprocessors";
}

absl::StatusOr<GpuDescription> GpuOfThisMachine(const DriverApi& driver) {
  RETURN_IF_ERROR(driver.Check(driver.Init(0), "cuInit"));
  int count = 0;
  RETURN_IF_ERROR(driver.Check(driver.DeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0) return FailedPrecondition() << "the CUDA driver finds no GPU";
  CUdevice gpu = 0;
  RETURN_IF_ERROR(driver.Check(driver.DeviceGet(&gpu, 0), "cuDeviceGet of GPU 0"));
  GpuDescription description;
  char name[128] = {};
  size_t bytes = 0;
  RETURN_IF_ERROR(driver.Check(driver.DeviceGetName(name, sizeof(name), gpu), "cuDeviceGetName"));
  RETURN_IF_ERROR(driver.Check(driver.DeviceTotalMem(&bytes, gpu), "cuDeviceTotalMem"));
  ASSIGN_OR_RETURN(description.capability, CapabilityOf(driver, gpu));
  RETURN_IF_ERROR(driver.Check(
      driver.DeviceGetAttribute(&description.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu),
      "cuDeviceGetAttribute"));
  if (description.capability < kOldestCapability) {
    return FailedPrecondition() << name << " has compute capability " << description.capability / 10 << "."
                                << description.capability % 10 << "; 8.0 (Ampere) or later is needed";
  }
  description.name = name;
  description.architecture = ArchitectureOf(description.capability);
  description.memory_bytes = bytes;
  description.slow_f64 = HasSlowF64(description.capability);
  // The driver's name may say more, such as "NVIDIA H100 80GB HBM3".
  for (const Model& model : kModels) {
    if (description.name.starts_with(model.full_name)) description.ceilings = CeilingsOf(model);
  }
  return description;
}

}  // namespace lockstep::cuda
