// What the fake libraries of this folder share. Each answers with a version that a test can set: the number in the file
// <path of the library>.version beside it, in the form that the library's own version function returns.

#pragma once

#include <dlfcn.h>

#include <fstream>
#include <string>

// Makes a function of the fake visible under the vendor's name.
#define LOCKSTEP_BARE extern "C" __attribute__((visibility("default")))

namespace lockstep::bare {

// The number in the file beside the library in which `function` is, or `number`.
inline int VersionOr(int number, void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0) return number;
  std::ifstream file(std::string(info.dli_fname) + ".version");
  file >> number;
  return number;
}

}  // namespace lockstep::bare
