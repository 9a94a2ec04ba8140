#include "runtime/cuda/nccl.h"

#include <cstdlib>

#include "core/status.h"

namespace lockstep::cuda {

absl::Status NcclApi::Check(ncclResult_t result, std::string_view call) const {
  if (result == ncclSuccess) return absl::OkStatus();
  const char* text = GetErrorString(result);
  const char* last = GetLastError(nullptr);
  ErrorStream error(absl::StatusCode::kInternal);
  error << "NCCL: " << call << ": " << (text == nullptr ? "an error that it does not know" : text) << " ("
        << static_cast<int>(result) << ")";
  if (last != nullptr && *last != 0) error << ": " << last;
  return error;
}

const LibrarySpec& NcclSpec() {
  static const LibrarySpec* const spec = new LibrarySpec{.name = "NCCL",
                                                         .files = {"libnccl.so.2"},
                                                         .at_least = {2, 27, 0},
                                                         .install = "pip install 'nvidia-nccl-cu13>=2.27'"};
  return *spec;
}

namespace {

Version VersionOfNccl(int number) {
  if (number < 10000) return {number / 1000, number / 100 % 10, number % 100};  // before 2.9
  return VersionOfNumber(number);
}

// Loads the version first, so that the error for an old library is its version, not a missing function.
absl::Status Load(const Library& library, NcclApi& api) {
  RETURN_IF_ERROR(library.Load("ncclGetVersion", api.GetVersion));
  int number = 0;
  const ncclResult_t result = api.GetVersion(&number);
  if (result != ncclSuccess) return FailedPrecondition() << "ncclGetVersion returned error " << result;
  api.from = {.path = library.path(), .version = VersionOfNccl(number)};
  RETURN_IF_ERROR(CheckVersion(NcclSpec(), api.from.version));
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_CUDA_LOAD)
  // Sums in the switch (NVLS) have bits that depend on the collectives before them, so that a program run twice may
  // give two results (https://github.com/NVIDIA/nccl/issues/2360). NCCL reads this when it makes a communicator.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NcclApi> FindNccl(const SearchPlaces& places) {
  NcclApi api;
  RETURN_IF_ERROR(FindLibrary(NcclSpec(), places, [&](const Library& library) { return Load(library, api); }));
  return api;
}

absl::StatusOr<const NcclApi*> Nccl() {
  static TableOfProcess<NcclApi>* const table = new TableOfProcess<NcclApi>;
  return table->Get([] { return FindNccl(PlacesOfProcess()); });
}

}  // namespace lockstep::cuda
