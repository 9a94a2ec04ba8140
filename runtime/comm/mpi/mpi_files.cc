#include "runtime/comm/mpi/mpi_files.h"

#include <unistd.h>

#include <fstream>

namespace lockstep {

void RemoveMpiFiles(const std::string& prefix) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // A file that was removed already ends with " (deleted)", and so is no file.
    const size_t path = line.find(prefix);
    if (path != std::string::npos) unlink(line.c_str() + path);
  }
}

}  // namespace lockstep
