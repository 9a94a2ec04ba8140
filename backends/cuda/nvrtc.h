// NVRTC (libnvrtc.so.13 or .12), which cuDNN opens by its name when it compiles an engine, and without which it leaves
// those engines out and says nothing. So it is opened here first, from the places of all libraries: what is loaded is
// found by its name. Nothing else of it is used. `make cuda-abi` compares the table with the vendor's nvrtc.h. Any
// thread.

#pragma once

#include "absl/status/statusor.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/search.h"
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

// What is looked for: that of the CUDA, by its first number, that cuDNN is made for.
LibrarySpec NvrtcSpec(int cuda);

// The first in `places`, which stays open; the error of FindLibrary (runtime/cuda/search.h) if there is none.
absl::StatusOr<NvrtcApi> FindNvrtc(const SearchPlaces& places, int cuda);

}  // namespace lockstep::cuda
