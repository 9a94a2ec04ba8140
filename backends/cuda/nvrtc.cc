#include "backends/cuda/nvrtc.h"

#include <string>

#include "core/status.h"

namespace lockstep::cuda {

LibrarySpec NvrtcSpec(int cuda) {
  return {.name = "NVRTC",
          .files = {"libnvrtc.so." + std::to_string(cuda)},
          .at_least = {cuda, 0, 0},
          .install = cuda == 12 ? "pip install nvidia-cuda-nvrtc-cu12" : "pip install nvidia-cuda-nvrtc"};
}

absl::StatusOr<NvrtcApi> FindNvrtc(const SearchPlaces& places, int cuda) {
  NvrtcApi api;
  const LibrarySpec spec = NvrtcSpec(cuda);
  RETURN_IF_ERROR(FindLibrary(spec, places, [&](const Library& library) -> absl::Status {
    LOCKSTEP_NVRTC_FUNCTIONS(LOCKSTEP_CUDA_LOAD)
    api.from = {.path = library.path(), .version = {}};
    const nvrtcResult result = api.Version(&api.from.version.major, &api.from.version.minor);
    if (result != NVRTC_SUCCESS) return FailedPrecondition() << "nvrtcVersion returned error " << result;
    return CheckVersion(spec, api.from.version);
  }));
  return api;
}

}  // namespace lockstep::cuda
