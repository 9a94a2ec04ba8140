#include "runtime/comm/mpi/mpi_files.h"

#include <unistd.h>

#include <fstream>

namespace lockstep {

void RemoveMpiFiles(const std::string& prefix) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // The line of a removed file ends with " (deleted)", so it names no existing file.
    const size_t path = line.find(prefix);
    if (path != std::string::npos) unlink(line.c_str() + path);
  }
}

}  // namespace lockstep
