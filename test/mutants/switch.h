// Included at the top of a source that contains mutants (see schemata.py), and nowhere else. Any thread may call it.

// A guard, because several such sources can be one unit.
#ifndef LOCKSTEP_MUTANTS_SWITCH_
#define LOCKSTEP_MUTANTS_SWITCH_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace lockstep_mutants {

// The file that LOCKSTEP_MUTANTS_REACHED names, one byte per mutant, shared with every process that is started from
// here. Null if there is none.
inline unsigned char* Reached() {
  const char* const path = std::getenv("LOCKSTEP_MUTANTS_REACHED");
  const int file = path == nullptr ? -1 : open(path, O_RDWR);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) return nullptr;
  void* const bytes = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return bytes == MAP_FAILED ? nullptr : static_cast<unsigned char*>(bytes);
}

// Returns true if the program runs as this mutant. Records that its place was reached.
inline bool Is(int id) {
  static unsigned char* const reached = Reached();
  static const char* const chosen = std::getenv("LOCKSTEP_MUTANT");
  static const int number = chosen == nullptr ? -1 : std::atoi(chosen);
  if (reached != nullptr) reached[id] = 1;
  return number == id;
}

}  // namespace lockstep_mutants

#endif  // LOCKSTEP_MUTANTS_SWITCH_
