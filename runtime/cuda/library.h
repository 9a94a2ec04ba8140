// A shared library that is opened while the program runs, so that neither building nor importing this project needs it.
// Used by the tables of NVIDIA's libraries (driver.h) and the search for them (library_search.h). Any thread.

#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/status.h"

namespace lockstep::cuda {

struct Version {
  int major = 0;
  int minor = 0;
  int patch = 0;
  auto operator<=>(const Version&) const = default;
  std::string ToString() const;  // "9.19.0"
};

// Returns the version in a number of the form major * 10000 + minor * 100 + patch, as cuBLASLt, cuDNN 9 and NCCL return
// it.
Version VersionOfNumber(int64_t number);

// An opened library; a small value. It stays open as long as the process lives, because closing drivers is not safe.
class Library {
 public:
  // Opens the file at `path`, or the file that the system finds if it is only a name. `name` is the name in messages
  // ("the CUDA driver"). NotFound if there is no such file, FailedPrecondition if it cannot be opened.
  static absl::StatusOr<Library> Open(std::string_view name, const std::string& path);

  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }  // the path of the opened file

  // Returns the address of `symbol`, or an error that names the library.
  absl::StatusOr<void*> Find(const char* symbol) const;

  // Sets `function` to that address.
  template <typename F>
  absl::Status Load(const char* symbol, F*& function) const {
    ASSIGN_OR_RETURN(void* const address, Find(symbol));
    function = reinterpret_cast<F*>(address);
    return absl::OkStatus();
  }

 private:
  Library(std::string name, std::string path, void* handle)
      : name_(std::move(name)), path_(std::move(path)), handle_(handle) {}

  std::string name_;
  std::string path_;
  void* handle_;
};

// The library from which a table was loaded.
struct LoadedFrom {
  std::string path;
  Version version;
};

}  // namespace lockstep::cuda
