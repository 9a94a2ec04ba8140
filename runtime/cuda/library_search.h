// The search for NVIDIA's libraries, and its error messages. It looks first in the system's folders, then in those of
// Python's nvidia-* packages, then in LOCKSTEP_CUDA_PATH. It takes the first library that opens, is new enough and has
// all functions. Used by the tables (driver.h and similar headers). Any thread.

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

// The requirements of a search. Constant data, one object for each library.
struct LibrarySpec {
  std::string name;                // "cuDNN"
  std::vector<std::string> files;  // "libcudnn.so.9"; in each place, the first suitable file is taken
  // Files of the same folder that the library opens when it is used. They are opened in advance, because cuDNN ends the
  // process if one is missing.
  std::vector<std::string> parts = {};
  Version at_least;
  std::string install;  // "pip install nvidia-cudnn-cu13"
};

struct SearchPlaces {
  bool system = true;                         // the search of the dynamic linker: LD_LIBRARY_PATH, ld.so.conf, …
  std::vector<std::string> python_folders;    // of Python's packages, such as .../site-packages/nvidia/cudnn/lib
  std::optional<std::string> cuda_path = {};  // the value of LOCKSTEP_CUDA_PATH: folders separated by ':'
};

// Returns the places of this process: the folders of SetPythonFolders, and LOCKSTEP_CUDA_PATH from the environment.
SearchPlaces PlacesOfProcess();

// Sets the folders of libraries in Python packages for this process. The Python package calls it once, when it is
// imported. Libraries that were found before are not affected.
void SetPythonFolders(std::vector<std::string> folders);

// Opens the libraries in the order of the places until `accept` returns OK. `accept` fills the table and checks the
// version (CheckVersion). The error lists the requirements, the places, the problem of each library found, and an
// install command: NotFound if no library was found, otherwise FailedPrecondition.
absl::Status FindLibrary(const LibrarySpec& spec, const SearchPlaces& places,
                         const std::function<absl::Status(const Library&)>& accept);

// Returns an error if `found` is older than required.
absl::Status CheckVersion(const LibrarySpec& spec, const Version& found);

// The table of a library for the whole process. It is process-wide like the library: two tables would have the same
// functions and the same state. A found table is kept. After a failed search, the next call searches again.
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
