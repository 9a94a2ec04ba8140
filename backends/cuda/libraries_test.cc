// The search for cuBLASLt and cuDNN, and their errors. The libraries are fakes.

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "backends/cuda/cublaslt.h"
#include "backends/cuda/cudnn.h"
#include "backends/cuda/nvrtc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/bare/install.h"

namespace lockstep::cuda {
namespace {

using bare::Install;
using bare::NewFolder;
using testing::AllOf;
using testing::HasSubstr;

SearchPlaces Only(const std::string& folder) { return {.system = false, .python_folders = {folder}, .cuda_path = {}}; }

DriverApi DriverOf(int version) {
  return FindDriver(Only(Install(NewFolder(), "libcuda.so.1", "libcuda.so.1", version))).value();
}

// Creates a folder with cuDNN and its parts, except `without`.
std::string InstallCudnn(int version = 0, const std::string& without = "") {
  const std::string folder = Install(NewFolder(), "libcudnn.so.9", "libcudnn.so.9", version);
  for (const std::string& part : CudnnSpec().parts) {
    if (part != without) Install(folder, "libcudnn_part.so", part);
  }
  return folder;
}

TEST(CublasLtTest, IsFoundWithItsVersion) {
  const std::string folder = Install(NewFolder(), "libcublasLt.so.13", "libcublasLt.so.13");
  const auto found = FindCublasLt(Only(folder), nullptr);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->from.path, folder + "/libcublasLt.so.13");
  EXPECT_EQ(found->from.version.ToString(), "13.1.0");
}

// A driver of CUDA 12 cannot run libraries for CUDA 13; an older library in the same places is used.
TEST(CublasLtTest, FitsTheDriver) {
  const DriverApi old_driver = DriverOf(12040), driver = DriverOf(13000);
  const std::string folder = Install(NewFolder(), "libcublasLt.so.13", "libcublasLt.so.13");
  const auto refused = FindCublasLt(Only(folder), &old_driver);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("it is made for CUDA 13, and the driver " + old_driver.from.path + " supports CUDA 12.4"),
                    HasSubstr("pip install nvidia-cublas")));
  Install(folder, "libcublasLt.so.13", "libcublasLt.so.12", 120805);
  const auto older = FindCublasLt(Only(folder), &old_driver);
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_EQ(older->from.version.ToString(), "12.8.5");
  const auto newer = FindCublasLt(Only(folder), &driver);
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_EQ(newer->from.version.ToString(), "13.1.0");
}

TEST(CublasLtTest, ErrorsHaveNameAndText) {
  const auto api = FindCublasLt(Only(Install(NewFolder(), "libcublasLt.so.13", "libcublasLt.so.13")), nullptr);
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_TRUE(api->Check(CUBLAS_STATUS_SUCCESS, "cublasLtMatmul").ok());
  const absl::Status status = api->Check(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmul");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "cuBLASLt: cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED (15): the functionality is not supported");
  EXPECT_EQ(api->Check(CUBLAS_STATUS_EXECUTION_FAILED, "cublasLtMatmul").code(), absl::StatusCode::kInternal);
}

TEST(CudnnTest, IsFoundWithItsParts) {
  const std::string folder = InstallCudnn();
  const auto found = FindCudnn(Only(folder), nullptr);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->from.path, folder + "/libcudnn.so.9");
  EXPECT_EQ(found->from.version.ToString(), "9.19.0");
}

// cuDNN would end the process when it is called.
TEST(CudnnTest, APartThatIsMissingIsNamed) {
  for (const std::string& part : CudnnSpec().parts) {
    const std::string folder = InstallCudnn(0, part);
    const auto found = FindCudnn(Only(folder), nullptr);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(found.status().message()), HasSubstr(folder + "/libcudnn.so.9 lacks " + part +
                                                                 ", a part of it: there is no " + folder + "/" + part));
  }
}

// NVRTC is opened from the places of all libraries, so that cuDNN, which opens it by name, finds it.
TEST(CudnnTest, FindsNvrtcOfItsCudaElsewhere) {
  const std::string folder = InstallCudnn(), elsewhere = Install(NewFolder(), "libnvrtc.so.13", "libnvrtc.so.13");
  const SearchPlaces places = {.system = false, .python_folders = {folder, elsewhere}, .cuda_path = {}};
  const auto found = FindCudnn(places, nullptr);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->nvrtc.path, elsewhere + "/libnvrtc.so.13");
  EXPECT_EQ(found->nvrtc.version.ToString(), "13.0.0");
  void* const opened = dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(opened, nullptr) << "as cuDNN opens it";
}

TEST(CudnnTest, WithoutNvrtcItHasFewerEngines) {
  const std::string folder = InstallCudnn();
  const auto found = FindCudnn(Only(folder), nullptr);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->nvrtc.path, "");
  const absl::Status missing = FindNvrtc(Only(folder), 13).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("pip install nvidia-cuda-nvrtc"));
  const std::string older = Install(NewFolder(), "libnvrtc.so.13", "libnvrtc.so.13", 1209);
  EXPECT_THAT(std::string(FindNvrtc(Only(older), 13).status().message()), HasSubstr("it is version 12.9.0"));
}

TEST(CudnnTest, OldOnesAndThoseForALaterCudaAreRefused) {
  const auto old = FindCudnn(Only(InstallCudnn(90701)), nullptr);
  EXPECT_THAT(std::string(old.status().message()), HasSubstr("it is version 9.7.1, expected 9.10.0 or later"));
  const DriverApi old_driver = DriverOf(12040);
  EXPECT_THAT(std::string(FindCudnn(Only(InstallCudnn()), &old_driver).status().message()),
              HasSubstr("it is made for CUDA 13"));
}

TEST(CudnnTest, ErrorsSayWhatItSaysLast) {
  const auto api = FindCudnn(Only(InstallCudnn()), nullptr);
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_TRUE(api->Check(CUDNN_STATUS_SUCCESS, "cudnnBackendFinalize").ok());
  const absl::Status status = api->Check(static_cast<cudnnStatus_t>(3002), "cudnnBackendFinalize");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "cuDNN: cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED_SHAPE (3002): too many dimensions");
  EXPECT_EQ(api->Check(CUDNN_STATUS_EXECUTION_FAILED, "cudnnBackendExecute").code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace lockstep::cuda
