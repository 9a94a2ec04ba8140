#include "runtime/comm/mpi/mpi_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

bool IsThere(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void* MapNew(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  EXPECT_GE(file, 0) << path;
  EXPECT_EQ(ftruncate(file, 4096), 0);
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  EXPECT_NE(memory, MAP_FAILED);
  close(file);
  return memory;
}

TEST(MpiFiles, RemovesWhatIsMappedAndHasTheName) {
  const std::string prefix = "/dev/shm/mpi_files_test." + std::to_string(getpid()) + ".";
  const std::string mine = prefix + "0", other = prefix + "1", named_otherwise = prefix.substr(0, prefix.size() - 1);
  void* memory = MapNew(mine);
  munmap(MapNew(other), 4096);
  void* kept = MapNew(named_otherwise);

  RemoveMpiFiles(prefix);
  EXPECT_FALSE(IsThere(mine));
  EXPECT_TRUE(IsThere(other)) << "somebody else's";
  EXPECT_TRUE(IsThere(named_otherwise));
  *static_cast<char*>(memory) = 1;  // the file stays mapped

  RemoveMpiFiles(prefix);  // no file is left to remove
  munmap(memory, 4096);
  munmap(kept, 4096);
  unlink(other.c_str());
  unlink(named_otherwise.c_str());
}

}  // namespace
}  // namespace lockstep
