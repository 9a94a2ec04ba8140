#include "backends/cuda/machine.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/codegen/ptx_architecture.h"
#include "backends/cuda/cublaslt.h"
#include "backends/cuda/cudnn.h"
#include "backends/cuda/nvrtc.h"
#include "backends/cuda/ptx_version.h"
#include "core/status.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/nccl.h"

namespace lockstep::cuda {
namespace {

absl::Status Attribute(const DriverApi& driver, CUdevice device, CUdevice_attribute attribute, int& value) {
  return driver.Check(driver.DeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
}

// Returns a text such as "8f3b0c52-61d1-...".
std::string Text(const CUuuid& uuid) {
  std::string text;
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += "-";
    absl::StrAppend(&text, absl::Hex(static_cast<unsigned char>(uuid.bytes[i]), absl::kZeroPad2));
  }
  return text;
}

absl::StatusOr<std::string> CodeFor(const DriverApi& driver, int capability) {
  if (capability < kOldestCapability) return FailedPrecondition() << "8.0 (Ampere) or later is needed";
  const std::string gpu = "sm_" + std::to_string(capability);
  ASSIGN_OR_RETURN(const std::string architecture, PtxArchitectureFor(gpu));
  ASSIGN_OR_RETURN(const std::string ptx, EmptyPtxFor(gpu));
  RETURN_IF_ERROR(CheckReads(driver, ptx));
  return architecture + " (" + DescribePtx(PtxVersionOf(ptx)) + ")";
}

absl::StatusOr<VisibleGpu> DescribeGpu(const DriverApi& driver, int number) {
  CUdevice device = 0;
  RETURN_IF_ERROR(driver.Check(driver.DeviceGet(&device, number), "cuDeviceGet"));
  VisibleGpu gpu;
  std::array<char, 256> name = {};
  RETURN_IF_ERROR(driver.Check(driver.DeviceGetName(name.data(), name.size() - 1, device), "cuDeviceGetName"));
  gpu.name = name.data();
  CUuuid uuid = {};
  RETURN_IF_ERROR(driver.Check(driver.DeviceGetUuid_v2(&uuid, device), "cuDeviceGetUuid"));
  gpu.uuid = Text(uuid);
  RETURN_IF_ERROR(Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu.capability_major));
  RETURN_IF_ERROR(Attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu.capability_minor));
  RETURN_IF_ERROR(Attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu.multiprocessors));
  size_t bytes = 0;
  RETURN_IF_ERROR(driver.Check(driver.DeviceTotalMem(&bytes, device), "cuDeviceTotalMem"));
  gpu.memory_bytes = bytes;
  const absl::StatusOr<std::string> code = CodeFor(driver, 10 * gpu.capability_major + gpu.capability_minor);
  gpu.code = code.ok() ? *code : "";
  gpu.unfit = std::string(code.status().message());
  return gpu;
}

template <typename Api>
LibraryDescription Describe(const LibrarySpec& spec, const absl::StatusOr<Api>& api) {
  return {
      .name = spec.name, .install = spec.install, .status = api.status(), .from = api.ok() ? api->from : LoadedFrom{}};
}

}  // namespace

absl::StatusOr<std::vector<VisibleGpu>> DescribeGpus(const SearchPlaces& places) {
  ASSIGN_OR_RETURN(const DriverApi driver, FindDriver(places));
  RETURN_IF_ERROR(driver.Check(driver.Init(0), "cuInit"));
  int count = 0;
  RETURN_IF_ERROR(driver.Check(driver.DeviceGetCount(&count), "cuDeviceGetCount"));
  std::vector<VisibleGpu> gpus;
  for (int number = 0; number < count; ++number) {
    ASSIGN_OR_RETURN(VisibleGpu gpu, DescribeGpu(driver, number));
    gpus.push_back(std::move(gpu));
  }
  if (gpus.empty()) return FailedPrecondition() << "the CUDA driver " << driver.from.path << " shows no GPU";
  return gpus;
}

std::vector<LibraryDescription> DescribeLibraries(const SearchPlaces& places) {
  const absl::StatusOr<DriverApi> driver = FindDriver(places);
  const DriverApi* const fits = driver.ok() ? &*driver : nullptr;
  const absl::StatusOr<CudnnApi> cudnn = FindCudnn(places, fits);
  constexpr int kNewest = 13;
  const int cuda = cudnn.ok() ? cudnn->cuda : kNewest;
  return {Describe(DriverSpec(), driver), Describe(CublasLtSpec(), FindCublasLt(places, fits)),
          Describe(CudnnSpec(), cudnn), Describe(NvrtcSpec(cuda), FindNvrtc(places, cuda)),
          Describe(NcclSpec(), FindNccl(places))};
}

}  // namespace lockstep::cuda
