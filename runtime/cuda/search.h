// Where NVIDIA's libraries are looked for, and what is said when one is not found. First come the system's folders,
// then those of Python's nvidia-* packages, then LOCKSTEP_CUDA_PATH; the first library that opens, is new enough and
// has all functions is taken. Called by the tables (driver.h and its like). Any thread may.

#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/status.h"
#include "runtime/cuda/library.h"

namespace lockstep::cuda {

// What is wanted. Constant data, one a library.
struct LibrarySpec {
  std::string name;                // "cuDNN"
  std::vector<std::string> files;  // "libcudnn.so.9"; in each place the first of them that fits is taken
  // Files of the same folder that the library opens when it is used. They are opened before it is called: cuDNN ends
  // the process where one is missing.
  std::vector<std::string> parts = {};
  Version at_least;
  std::string install;  // "pip install nvidia-cudnn-cu13"
};

struct SearchPlaces {
  bool system = true;                         // what the dynamic linker finds by name: LD_LIBRARY_PATH, ld.so.conf, …
  std::vector<std::string> python_folders;    // of Python's packages, as .../site-packages/nvidia/cudnn/lib
  std::optional<std::string> cuda_path = {};  // the value of LOCKSTEP_CUDA_PATH: folders with ':' between them
};

// The places of this process: what SetPythonFolders was given, and the environment's LOCKSTEP_CUDA_PATH.
SearchPlaces PlacesOfProcess();

// Tells the process in which folders Python's packages have libraries. The Python package calls it once, when it is
// imported; it says nothing of libraries that were found before.
void SetPythonFolders(std::vector<std::string> folders);

// Opens one library after the other, in the order of the places, until `accept` is OK, which fills the table and
// asks for the version (CheckVersion). The error says what was looked for, where, what was wrong with each that was
// there, and how to install one: NotFound if there was none, else FailedPrecondition.
absl::Status FindLibrary(const LibrarySpec& spec, const SearchPlaces& places,
                         const std::function<absl::Status(const Library&)>& accept);

// An error if `found` is older than what is wanted.
absl::Status CheckVersion(const LibrarySpec& spec, const Version& found);

// The one table of a library that a process uses. It is process-wide as the library is: two tables would be of the
// same functions and the same state. What was found stays; what was not is looked for again at the next call.
template <typename Api>
class TableOfProcess {
 public:
  absl::StatusOr<const Api*> Get(const std::function<absl::StatusOr<Api>()>& find) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (api_ == nullptr) {
      ASSIGN_OR_RETURN(Api api, find());
      api_ = std::make_unique<const Api>(std::move(api));
    }
    return api_.get();
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<const Api> api_;
};

}  // namespace lockstep::cuda
