// Tests the search for libraries, and the messages about missing, old or broken ones. The libraries are fakes.

#include "runtime/cuda/library_search.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/nccl.h"
#include "test/fake_cuda/bare/install.h"

namespace lockstep::cuda {
namespace {

namespace fs = std::filesystem;
using bare::Install;
using bare::NewFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Returns places without the system's folders, so that the tests are the same on a machine with a GPU.
SearchPlaces Only(std::vector<std::string> python, std::optional<std::string> cuda_path = {}) {
  return {.system = false, .python_folders = std::move(python), .cuda_path = std::move(cuda_path)};
}

std::string MessageOf(const absl::StatusOr<NcclApi>& api) {
  return api.ok() ? "found " + api->from.path : std::string(api.status().message());
}

// Returns the output of find_main, a separate process, for the driver and NCCL.
std::string FindIn(const std::string& environment) {
  const std::string command = "env -u LOCKSTEP_CUDA_PATH " + environment + " runtime/cuda/find_main 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  while (const size_t bytes = fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), bytes);
  EXPECT_EQ(pclose(pipe), 0) << text;
  return text;
}

TEST(SearchTest, PythonComesBeforeThePath) {
  const std::string python = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2", 22800);
  const std::string path = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2", 22900);
  const auto both = FindNccl(Only({NewFolder(), python}, path));
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->from.path, python + "/libnccl.so.2");
  EXPECT_EQ(both->from.version.ToString(), "2.28.0");
  const auto only_path = FindNccl(Only({NewFolder()}, path));
  ASSERT_TRUE(only_path.ok()) << only_path.status();
  EXPECT_EQ(only_path->from.version.ToString(), "2.29.0");
}

// The dynamic linker searches LD_LIBRARY_PATH, which it reads when a process starts.
TEST(SearchTest, TheSystemComesFirst) {
  const std::string system = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2", 22700);
  const std::string path = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2", 22900);
  EXPECT_THAT(FindIn("LD_LIBRARY_PATH=" + system + " LOCKSTEP_CUDA_PATH=" + path),
              HasSubstr("NCCL 2.27.0 " + system + "/libnccl.so.2\n"));
  EXPECT_THAT(FindIn("LOCKSTEP_CUDA_PATH=" + path), HasSubstr("NCCL 2.29.0 " + path + "/libnccl.so.2\n"));
}

TEST(SearchTest, AFolderOfThePathMayHoldItInOneOfItsFolders) {
  for (const char* below : {"", "/lib", "/lib64", "/nccl/lib", "/nvidia/nccl/lib"}) {
    const std::string root = NewFolder();
    const std::string folder = Install(root + below, "libnccl.so.2", "libnccl.so.2");
    const auto found = FindNccl(Only({}, "/nowhere::" + root));
    ASSERT_TRUE(found.ok()) << below << ": " << found.status();
    EXPECT_EQ(found->from.path, folder + "/libnccl.so.2");
  }
}

TEST(SearchTest, WhatIsMissingIsSaidWithEachPlaceAndTheCommand) {
  const std::string empty = NewFolder();
  const auto found = FindNccl(Only({empty}, "/nowhere"));
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(found),
            "NCCL 2.27.0 or later is needed, but it was not found. Looked for libnccl.so.2 in\n"
            "  Python's nvidia-* packages: not in " +
                empty +
                "\n"
                "  LOCKSTEP_CUDA_PATH: there is no folder /nowhere\n"
                "To install it: pip install 'nvidia-nccl-cu13>=2.27'");
  EXPECT_THAT(MessageOf(FindNccl(Only({}))), AllOf(HasSubstr("Python's nvidia-* packages: there are none\n"),
                                                   HasSubstr("LOCKSTEP_CUDA_PATH: it is not set\n")));
  EXPECT_THAT(MessageOf(FindNccl(Only({}, ""))), HasSubstr("LOCKSTEP_CUDA_PATH: it is empty\n"));
}

TEST(SearchTest, WithoutADriverTheSystemIsNamedToo) {
  const std::string text = FindIn("LD_LIBRARY_PATH=" + NewFolder());
  if (text.find("NCCL: ") == std::string::npos) GTEST_SKIP() << "this machine has an NCCL";
  EXPECT_THAT(text, HasSubstr("Looked for libnccl.so.2 in\n  the system's folders: not there\n"));
}

TEST(SearchTest, AnOldLibraryIsPassedOverAndSaid) {
  const std::string old = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2", 22005);
  const auto refused = FindNccl(Only({old}));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(refused),
              AllOf(HasSubstr("2.27.0 or later is needed, but the libraries found cannot be used"),
                    HasSubstr(old + "/libnccl.so.2: it is version 2.20.5, expected 2.27.0 or later")));
  const std::string ancient = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2", 2804);
  EXPECT_THAT(MessageOf(FindNccl(Only({ancient}))), HasSubstr("it is version 2.8.4"));
  const std::string fresh = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2", 22907);
  const auto found = FindNccl(Only({old}, fresh));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->from.version.ToString(), "2.29.7");
}

TEST(SearchTest, AMissingFunctionIsNamed) {
  const std::string folder = Install(NewFolder(), "libnccl_without_register.so", "libnccl.so.2");
  EXPECT_THAT(MessageOf(FindNccl(Only({folder}))),
              HasSubstr(folder + "/libnccl.so.2: NCCL lacks the function ncclCommRegister"));
  // The error for an old one is its version, although it lacks the function, too.
  const std::string old = Install(NewFolder(), "libnccl_without_register.so", "libnccl.so.2", 22005);
  EXPECT_THAT(MessageOf(FindNccl(Only({old}))), AllOf(HasSubstr("version 2.20.5"), Not(HasSubstr("ncclCommRegister"))));
}

TEST(SearchTest, ABrokenFileIsToldFromNone) {
  const std::string text = NewFolder(), cut = NewFolder(), foreign = NewFolder();
  std::ofstream(text + "/libnccl.so.2") << "version https://git-lfs.github.com/spec/v1\n";
  Install(cut, "libnccl.so.2", "libnccl.so.2");
  fs::resize_file(cut + "/libnccl.so.2", 100);
  Install(foreign, "libnccl.so.2", "libnccl.so.2");
  std::fstream file(foreign + "/libnccl.so.2", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(18);  // e_machine of the ELF header: 183 is AArch64
  file.put(static_cast<char>(183));
  file.close();
  fs::create_directories(text + "/folder/libnccl.so.2");
  for (const std::string& folder : {text, cut, foreign, text + "/folder"}) {
    const auto found = FindNccl(Only({folder}));
    EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition) << folder;
    EXPECT_THAT(MessageOf(found), HasSubstr(folder + "/libnccl.so.2 exists, but cannot be opened: ")) << folder;
    // By name, as in the system's folders: the same; a file for other processors counts as missing.
    const std::string by_name = FindIn("LD_LIBRARY_PATH=" + folder);
    if (folder == text || folder == cut) {
      EXPECT_THAT(by_name, HasSubstr("libnccl.so.2 exists, but cannot be opened: "));
    }
  }
}

TEST(SearchTest, TheDriverIsFoundAndItsErrorsHaveNames) {
  const std::string folder = Install(NewFolder(), "libcuda.so.1", "libcuda.so.1", 12040);
  const auto driver = FindDriver(Only({folder}));
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_EQ(driver->from.version.ToString(), "12.4.0");
  EXPECT_TRUE(driver->Check(CUDA_SUCCESS, "cuInit").ok());
  const absl::Status none = driver->Check(CUDA_ERROR_NO_DEVICE, "cuInit");
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(none.message(), "CUDA driver: cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
  EXPECT_EQ(driver->Check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(driver->Check(static_cast<CUresult>(12345), "cuMemAlloc").message(),
            "CUDA driver: cuMemAlloc: error 12345: an error that the driver does not know");
  EXPECT_TRUE(CheckFitsDriver(*driver, 12080).ok());
  EXPECT_THAT(std::string(CheckFitsDriver(*driver, 13000).message()),
              HasSubstr("it is made for CUDA 13, and the driver " + folder + "/libcuda.so.1 supports CUDA 12.4"));

  const std::string old = Install(NewFolder(), "libcuda.so.1", "libcuda.so.1", 11080);
  EXPECT_THAT(std::string(FindDriver(Only({old})).status().message()),
              AllOf(HasSubstr("The CUDA driver 12.0.0 or later is needed"), HasSubstr("it is version 11.8.0"),
                    HasSubstr("To install it: it comes with the system's driver of the GPU")));
}

// NCCL reads the variable from the environment of the process.
TEST(SearchTest, NcclDoesNotSumInTheSwitchUnlessTheJobAsksForIt) {
  const std::string folder = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2");
  unsetenv("NCCL_NVLS_ENABLE");
  ASSERT_TRUE(FindNccl(Only({folder})).ok());
  EXPECT_STREQ(getenv("NCCL_NVLS_ENABLE"), "0");
  setenv("NCCL_NVLS_ENABLE", "1", 1);
  ASSERT_TRUE(FindNccl(Only({folder})).ok());
  EXPECT_STREQ(getenv("NCCL_NVLS_ENABLE"), "1");
  unsetenv("NCCL_NVLS_ENABLE");
}

TEST(SearchTest, ErrorsOfNcclSayWhatItSaysLast) {
  const auto nccl = FindNccl(Only({Install(NewFolder(), "libnccl.so.2", "libnccl.so.2")}));
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  EXPECT_EQ(nccl->Check(ncclSystemError, "ncclCommInitRankConfig").message(),
            "NCCL: ncclCommInitRankConfig: unhandled system error (2): no socket interface found");
}

// All threads get one table, and a table that was not found may be found later.
TEST(SearchTest, AProcessHasOneTable) {
  unsetenv("LOCKSTEP_CUDA_PATH");
  if (Nccl().ok()) GTEST_SKIP() << "this machine has an NCCL";
  const std::string folder = Install(NewFolder(), "libnccl.so.2", "libnccl.so.2");
  SetPythonFolders({folder});
  std::array<const NcclApi*, 8> tables = {};
  std::vector<std::thread> threads;
  for (const NcclApi*& table : tables) {
    threads.emplace_back([&table] {
      const auto found = Nccl();
      table = found.ok() ? *found : nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(tables[0], nullptr);
  EXPECT_EQ(std::set<const NcclApi*>(tables.begin(), tables.end()).size(), 1);
  EXPECT_EQ(tables[0]->from.path, folder + "/libnccl.so.2");
}

}  // namespace
}  // namespace lockstep::cuda
