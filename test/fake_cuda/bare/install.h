// Copies the fake libraries of this folder to a place where a test wants them to be found. For tests that run in
// Bazel's runfiles.

#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace lockstep::bare {

// A new empty folder of this test.
inline std::string NewFolder() {
  std::string pattern = testing::TempDir() + "/bare.XXXXXX";
  return mkdtemp(pattern.data());
}

// Copies a fake to folder/name. It then reports `version`, unless that is 0. Returns the folder.
inline std::string Install(const std::string& folder, const std::string& fake, const std::string& name,
                           int version = 0) {
  const std::filesystem::path to = std::filesystem::path(folder) / name;
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file("test/fake_cuda/bare/" + fake, to, std::filesystem::copy_options::overwrite_existing);
  // Files that Bazel has built are read-only except for root.
  std::filesystem::permissions(to, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
  if (version != 0) std::ofstream(to.string() + ".version") << version;
  return folder;
}

}  // namespace lockstep::bare
