#include "backends/cuda/cublaslt.h"

#include "core/status.h"

namespace lockstep::cuda {

absl::Status CublasLtApi::Check(cublasStatus_t status, std::string_view call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const bool unsupported = status == CUBLAS_STATUS_NOT_SUPPORTED;
  const char* name = GetStatusName(status);
  const char* text = GetStatusString(status);
  return ErrorStream(unsupported ? absl::StatusCode::kUnimplemented : absl::StatusCode::kInternal)
         << "cuBLASLt: " << call << ": " << (name == nullptr ? "an unknown status" : name) << " ("
         << static_cast<int>(status) << ")" << (text == nullptr ? "" : ": ") << (text == nullptr ? "" : text);
}

const LibrarySpec& CublasLtSpec() {
  static const LibrarySpec* const spec = new LibrarySpec{.name = "cuBLASLt",
                                                         .files = {"libcublasLt.so.13", "libcublasLt.so.12"},
                                                         .at_least = {12, 0, 0},
                                                         .install = "pip install nvidia-cublas"};
  return *spec;
}

namespace {

// Checks the version first, so that the message says that a library is too old, not that it lacks a function.
absl::Status Load(const Library& library, const DriverApi* driver, CublasLtApi& api) {
  RETURN_IF_ERROR(library.Load("cublasLtGetVersion", api.GetVersion));
  api.from = {.path = library.path(), .version = VersionOfNumber(static_cast<int64_t>(api.GetVersion()))};
  RETURN_IF_ERROR(CheckVersion(CublasLtSpec(), api.from.version));
  LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_CUDA_LOAD)
  if (driver == nullptr) return absl::OkStatus();
  return CheckFitsDriver(*driver, static_cast<int64_t>(api.GetCudartVersion()));
}

}  // namespace

absl::StatusOr<CublasLtApi> FindCublasLt(const SearchPlaces& places, const DriverApi* driver) {
  CublasLtApi api;
  RETURN_IF_ERROR(
      FindLibrary(CublasLtSpec(), places, [&](const Library& library) { return Load(library, driver, api); }));
  return api;
}

absl::StatusOr<const CublasLtApi*> CublasLt() {
  static TableOfProcess<CublasLtApi>* const table = new TableOfProcess<CublasLtApi>;
  ASSIGN_OR_RETURN(const DriverApi* const driver, Driver());
  return table->Get([&] { return FindCublasLt(PlacesOfProcess(), driver); });
}

}  // namespace lockstep::cuda
