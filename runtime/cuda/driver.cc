#include "runtime/cuda/driver.h"

#include <string>

#include "core/status.h"

namespace lockstep::cuda {

namespace {

absl::StatusCode CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY: return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: return absl::StatusCode::kFailedPrecondition;
    default: return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status DriverApi::Check(CUresult result, std::string_view call) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  // The driver has neither a name nor a text for an unknown error.
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  if (GetErrorString(result, &text) != CUDA_SUCCESS) text = nullptr;
  return ErrorStream(CodeOf(result)) << "CUDA driver: " << call << ": "
                                     << (name == nullptr ? "error " + std::to_string(result) : name) << ": "
                                     << (text == nullptr ? "an error that the driver does not know" : text);
}

const LibrarySpec& DriverSpec() {
  static const LibrarySpec* const spec = new LibrarySpec{
      .name = "The CUDA driver",
      .files = {"libcuda.so.1"},
      .at_least = {12, 0, 0},
      .install = "it comes with the system's driver of the GPU (https://www.nvidia.com/drivers), not with pip"};
  return *spec;
}

namespace {

// Loads the version first, so that the error for an old driver is its version, not a missing function.
absl::Status LoadVersion(const Library& library, DriverApi& api) {
  RETURN_IF_ERROR(library.Load("cuDriverGetVersion", api.DriverGetVersion));
  int number = 0;
  const CUresult result = api.DriverGetVersion(&number);
  if (result != CUDA_SUCCESS) return FailedPrecondition() << "cuDriverGetVersion returned error " << result;
  api.from = {.path = library.path(), .version = {number / 1000, number / 10 % 100, 0}};
  return CheckVersion(DriverSpec(), api.from.version);
}

}  // namespace

absl::StatusOr<DriverApi> LoadDriverApi(const Library& library) {
  DriverApi api;
  RETURN_IF_ERROR(LoadVersion(library, api));
  LOCKSTEP_CU_FUNCTIONS(LOCKSTEP_CUDA_LOAD)
  LOCKSTEP_CU_LATER_FUNCTIONS(LOCKSTEP_CUDA_LOAD_IF_THERE)
  return api;
}

absl::StatusOr<DriverApi> FindDriver(const SearchPlaces& places) {
  DriverApi api;
  RETURN_IF_ERROR(FindLibrary(DriverSpec(), places, [&](const Library& library) -> absl::Status {
    ASSIGN_OR_RETURN(api, LoadDriverApi(library));
    return absl::OkStatus();
  }));
  return api;
}

absl::StatusOr<const DriverApi*> Driver() {
  static TableOfProcess<DriverApi>* const table = new TableOfProcess<DriverApi>;
  return table->Get([] { return FindDriver(PlacesOfProcess()); });
}

absl::Status CheckFitsDriver(const DriverApi& driver, int64_t cudart) {
  const Version& supported = driver.from.version;
  if (cudart / 1000 <= supported.major) return absl::OkStatus();
  return FailedPrecondition() << "it is made for CUDA " << cudart / 1000 << ", and the driver " << driver.from.path
                              << " supports CUDA " << supported.major << "." << supported.minor;
}

}  // namespace lockstep::cuda
