#include "runtime/cache_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/status.h"

namespace lockstep {

std::string CacheFolder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  std::string folder;
  if (cache != nullptr && cache[0] == '/') folder = cache;  // the XDG specification ignores relative paths
  else if (home != nullptr && home[0] == '/') folder = std::string(home) + "/.cache";
  return folder.empty() ? "" : folder + "/lockstep";
}

absl::Status ReplaceFile(const std::string& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  std::string name = path + ".XXXXXX";
  const auto failed = [&](const char* what) {
    const int error = errno;
    return FailedPrecondition() << what << " of " << name << ": " << std::strerror(error);
  };
  const int file = mkstemp(name.data());
  if (file < 0) return failed("mkstemp");
  absl::Status status;
  size_t written = 0;
  while (status.ok() && written < text.size()) {
    const ssize_t bytes = write(file, text.data() + written, text.size() - written);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) status = failed("write");
    else written += static_cast<size_t>(bytes);
  }
  if (close(file) != 0 && status.ok()) status = failed("close");
  if (status.ok() && rename(name.c_str(), path.c_str()) != 0) status = failed("rename");
  if (!status.ok()) (void)unlink(name.c_str());
  return status;
}

}  // namespace lockstep
