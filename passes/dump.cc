#include "passes/dump.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

namespace lockstep::passes {
namespace {

namespace fs = std::filesystem;

// Creates <directory>/<name>, or the first <directory>/<name>.<n> that is free. Safe if other processes do the same at
// the same time.
absl::StatusOr<fs::path> NewFolder(const fs::path& directory, std::string_view name) {
  std::error_code error;
  fs::create_directories(directory, error);
  for (int n = 1; !error; ++n) {
    const fs::path folder = directory / (std::string(name) + (n > 1 ? "." + std::to_string(n) : ""));
    if (fs::create_directory(folder, error)) return folder;
  }
  return ErrorStream(absl::StatusCode::kUnavailable)
         << "LOCKSTEP_DUMP: cannot create a folder in " << directory.string() << ": " << error.message();
}

}  // namespace

absl::StatusOr<PassDebug> DumpTo(const std::string& directory, std::string_view name) {
  ASSIGN_OR_RETURN(const fs::path folder, NewFolder(directory, FileName(std::string(name))));
  PassDebug debug;
  debug.reproducer_directory = folder.string();
  // The counter is shared by all copies of the function.
  debug.on_change = [folder, number = std::make_shared<int>(0)](const Pass& pass, const std::string&,
                                                                const Graph& after) {
    char prefix[16];
    std::snprintf(prefix, sizeof(prefix), "%03d.", ++*number);
    const fs::path path = folder / (prefix + pass.name + ".ir");
    std::ofstream file(path);
    file << "// @" << after.name() << " after " << pass.name << "\n" << after.ToString();
    file.flush();
    if (!file) std::fprintf(stderr, "LOCKSTEP_DUMP: cannot write %s\n", path.c_str());
  };
  return debug;
}

std::string DumpDirectoryFromEnvironment() {
  const char* directory = std::getenv("LOCKSTEP_DUMP");
  return directory == nullptr ? "" : directory;
}

}  // namespace lockstep::passes
