// Opens NVRTC (libnvrtc.so.13 or .12). cuDNN opens it by name when it compiles an engine, and silently omits such
// engines if it does not find it. NVRTC is therefore opened here first, from the places of all libraries, because a
// loaded library is found by its name. It has no other use here. `make cuda-abi` compares the table with the vendor's
// nvrtc.h. Any thread may call it.

#pragma once

#include "absl/status/statusor.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/library_search.h"
#include "runtime/cuda/table.h"

namespace lockstep::cuda {

#define LOCKSTEP_NVRTC_RESULTS(V) V(NVRTC_SUCCESS, 0)
#define LOCKSTEP_NVRTC_ENUMS(E) E(nvrtcResult, LOCKSTEP_NVRTC_RESULTS)
LOCKSTEP_NVRTC_ENUMS(LOCKSTEP_CUDA_ENUM)

#define LOCKSTEP_NVRTC_FUNCTIONS(F) F(nvrtcResult, Version, "nvrtcVersion", (int* major, int* minor))

struct NvrtcApi {
  LoadedFrom from;
  LOCKSTEP_NVRTC_FUNCTIONS(LOCKSTEP_CUDA_POINTER)
};

// The library to search for: that of the major version of CUDA that cuDNN is made for.
LibrarySpec NvrtcSpec(int cuda);

// Opens the first one in `places`, for the life of the process. Returns the error of FindLibrary
// (runtime/cuda/library_search.h) if there is none.
absl::StatusOr<NvrtcApi> FindNvrtc(const SearchPlaces& places, int cuda);

}  // namespace lockstep::cuda
