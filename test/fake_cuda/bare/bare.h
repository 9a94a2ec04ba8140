// The code that the fake libraries of this folder share. Each reports a version that a test can set: the number in the
// file <path of the library>.version beside it, in the form that the library's own version function returns.

#pragma once

#include <dlfcn.h>

#include <fstream>
#include <string>

// Makes a function of the fake visible under the vendor's name.
#define LOCKSTEP_BARE extern "C" __attribute__((visibility("default")))

namespace lockstep::bare {

// Returns the number in the version file of the library that contains `function`, or `number` if there is none.
inline int VersionOr(int number, void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0) return number;
  std::ifstream file(std::string(info.dli_fname) + ".version");
  file >> number;
  return number;
}

}  // namespace lockstep::bare
