#include "runtime/cuda/library.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>

namespace lockstep::cuda {

namespace {

// Returns true if dlopen failed because the file does not exist, and false if it failed because of the file's contents
// or dependencies. The texts are those of glibc and may be translated, but their beginnings are not: the given name if
// no such file was found, otherwise the path of the failed file or the name of a missing dependency. A file for other
// processors counts as not found.
bool IsMissing(const std::string& path, const std::string& error) {
  if (path.find('/') != std::string::npos) {
    std::error_code ignored;
    return !std::filesystem::exists(path, ignored);
  }
  return error.starts_with(path + ":") && error.find("ELFCLASS") == std::string::npos;
}

}  // namespace

std::string Version::ToString() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

Version VersionOfNumber(int64_t number) {
  return {static_cast<int>(number / 10000), static_cast<int>(number / 100 % 100), static_cast<int>(number % 100)};
}

absl::StatusOr<Library> Library::Open(std::string_view name, const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* text = dlerror();
    const std::string error = text == nullptr ? "dlopen failed" : text;
    if (IsMissing(path, error)) return NotFound() << "there is no " << path;
    return FailedPrecondition() << path << " exists, but cannot be opened: " << error;
  }
  link_map* map = nullptr;
  const bool has_path = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr;
  return Library(std::string(name), has_path ? map->l_name : path, handle);
}

absl::StatusOr<void*> Library::Find(const char* symbol) const {
  void* address = dlsym(handle_, symbol);
  if (address == nullptr) {
    return FailedPrecondition() << name_ << " lacks the function " << symbol
                                << ", so this program does not support its version";
  }
  return address;
}

}  // namespace lockstep::cuda
