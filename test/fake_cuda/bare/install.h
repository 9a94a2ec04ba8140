// Puts the fake libraries of this folder where a test wants them to be found. For tests that run in Bazel's runfiles.

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

// Copies a fake into folder/name, and makes it answer with `version` if that is not 0. Returns the folder.
inline std::string Install(const std::string& folder, const std::string& fake, const std::string& name,
                           int version = 0) {
  const std::filesystem::path to = std::filesystem::path(folder) / name;
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file("test/fake_cuda/bare/" + fake, to, std::filesystem::copy_options::overwrite_existing);
  // What Bazel has built may be changed by root alone.
  std::filesystem::permissions(to, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
  if (version != 0) std::ofstream(to.string() + ".version") << version;
  return folder;
}

}  // namespace lockstep::bare
