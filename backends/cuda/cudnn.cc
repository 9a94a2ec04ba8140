#include "backends/cuda/cudnn.h"

#include <array>

#include "backends/cuda/nvrtc.h"
#include "core/status.h"

namespace lockstep::cuda {

absl::Status CudnnApi::Check(cudnnStatus_t status, std::string_view call) const {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const bool unsupported = status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000;
  const char* name = GetErrorString(status);
  std::array<char, 1024> last = {};
  GetLastErrorString(last.data(), last.size() - 1);
  ErrorStream error(unsupported ? absl::StatusCode::kUnimplemented : absl::StatusCode::kInternal);
  error << "cuDNN: " << call << ": " << (name == nullptr ? "an unknown status" : name) << " ("
        << static_cast<int>(status) << ")";
  if (last[0] != 0) error << ": " << last.data();
  return error;
}

const LibrarySpec& CudnnSpec() {
  static const LibrarySpec* const spec =
      new LibrarySpec{.name = "cuDNN",
                      .files = {"libcudnn.so.9"},
                      .parts = {"libcudnn_graph.so.9", "libcudnn_heuristic.so.9", "libcudnn_engines_precompiled.so.9",
                                "libcudnn_engines_runtime_compiled.so.9"},
                      .at_least = {9, 10, 0},
                      .install = "pip install nvidia-cudnn-cu13 nvidia-cuda-nvrtc"};
  return *spec;
}

namespace {

// Checks the version first, so that the message says that a library is too old, not that it lacks a function.
absl::Status Load(const Library& library, const DriverApi* driver, CudnnApi& api) {
  RETURN_IF_ERROR(library.Load("cudnnGetVersion", api.GetVersion));
  api.from = {.path = library.path(), .version = VersionOfNumber(static_cast<int64_t>(api.GetVersion()))};
  RETURN_IF_ERROR(CheckVersion(CudnnSpec(), api.from.version));
  LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_CUDA_LOAD)
  api.cuda = static_cast<int>(api.GetCudartVersion() / 1000);
  if (driver == nullptr) return absl::OkStatus();
  return CheckFitsDriver(*driver, static_cast<int64_t>(api.GetCudartVersion()));
}

}  // namespace

absl::StatusOr<CudnnApi> FindCudnn(const SearchPlaces& places, const DriverApi* driver) {
  CudnnApi api;
  RETURN_IF_ERROR(FindLibrary(CudnnSpec(), places, [&](const Library& library) { return Load(library, driver, api); }));
  const absl::StatusOr<NvrtcApi> nvrtc = FindNvrtc(places, api.cuda);
  if (nvrtc.ok()) api.nvrtc = nvrtc->from;
  return api;
}

absl::StatusOr<const CudnnApi*> Cudnn() {
  static TableOfProcess<CudnnApi>* const table = new TableOfProcess<CudnnApi>;
  ASSIGN_OR_RETURN(const DriverApi* const driver, Driver());
  return table->Get([&] { return FindCudnn(PlacesOfProcess(), driver); });
}

}  // namespace lockstep::cuda
