// Runs the conformance suite over a real NCCL: one rank, and two ranks that share the first GPU if NCCL allows it. This
// needs NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 in the environment. For a machine with a GPU. Without a GPU or
// NCCL, or if NCCL refuses to share a GPU, cases are skipped with a message.

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/status.h"
#include "gtest/gtest.h"
#include "runtime/comm/conformance/cases.h"
#include "runtime/comm/conformance/device.h"
#include "runtime/comm/conformance/watchdog.h"
#include "runtime/comm/in_process.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/kept_contexts.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/nccl_communicator.h"

namespace lockstep::cuda {
namespace {

int CountGpus(const DriverApi& driver) {
  int count = 0;
  return driver.DeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

// Finds the tables of the libraries. Returns an error if this machine cannot run this many ranks.
absl::Status Find(int ranks, const DriverApi*& driver, const NcclApi*& nccl) {
  ASSIGN_OR_RETURN(driver, Driver());
  RETURN_IF_ERROR(driver->Check(driver->Init(0), "cuInit"));
  ASSIGN_OR_RETURN(nccl, Nccl());
  const char* const asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool shall_share = asked != nullptr && std::string(asked) == "1";
  if (ranks > CountGpus(*driver) && !shall_share) {
    return FailedPrecondition() << ranks << " ranks on " << CountGpus(*driver)
                                << " GPU of this machine need NCCL_MULTI_RANK_GPU_ENABLE=1";
  }
  return absl::OkStatus();
}

// Returns true for NCCL's answer to ranks that share a GPU if it does not allow this.
bool IsRefusal(const absl::Status& status) {
  return status.message().find("(" + std::to_string(ncclInvalidUsage) + ")") != std::string::npos;
}

// Sets `refused` if NCCL does not allow ranks to share a GPU.
absl::Status RunRank(const DriverApi& driver, const NcclApi& nccl, Communicator& host, const ConformanceCase& test,
                     std::atomic<bool>& refused) {
  ASSIGN_OR_RETURN(const auto device, CudaDevice::Create(driver, host.rank()));
  RETURN_IF_ERROR(ContextsOfProcess().Keep(driver, device->gpu()));
  auto made = NcclCommunicator::Create(nccl, host, *device);
  if (!made.ok() && host.size() > CountGpus(driver) && IsRefusal(made.status())) {
    refused = true;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(auto of_gpus, std::move(made));
  const auto communicator = AsHostCommunicator(std::move(of_gpus), *device);
  EXPECT_EQ(communicator->transport(), "nccl");
  const absl::Status status = test.run(*communicator);
  if (!status.ok()) communicator->Abort(status);
  return status;
}

class NcclOnGpus : public ::testing::TestWithParam<std::tuple<int, ConformanceCase>> {};

TEST_P(NcclOnGpus, AllRanksSucceed) {
  const auto& [ranks, test] = GetParam();
  const DriverApi* driver = nullptr;
  const NcclApi* nccl = nullptr;
  const absl::Status found = Find(ranks, driver, nccl);
  if (!found.ok()) GTEST_SKIP() << found.message();
  auto world = CreateInProcess(ranks, test.options);
  ASSERT_TRUE(world.ok()) << world.status();
  std::atomic<int> passed{0};
  std::atomic<bool> refused{false};
  std::vector<std::thread> threads;
  Watchdog watchdog;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r, &test = test, host = std::move((*world)[static_cast<size_t>(r)])]() mutable {
      watchdog.Begin(r, test.name);
      const absl::Status status = RunRank(*driver, *nccl, *host, test, refused);
      EXPECT_TRUE(status.ok()) << "rank " << r << ": " << status;
      if (status.ok()) ++passed;
      else host->Abort(status);
      host.reset();
      watchdog.End(r);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (refused) GTEST_SKIP() << "NCCL " << nccl->from.version.ToString() << " takes no ranks that share a GPU";
  EXPECT_EQ(passed, ranks);
}

std::vector<std::tuple<int, ConformanceCase>> Table() {
  std::vector<std::tuple<int, ConformanceCase>> table;
  for (int ranks : {1, 2}) {
    for (ConformanceCase& test : ConformanceCases()) {
      if (ranks >= test.min_ranks) table.emplace_back(ranks, std::move(test));
    }
  }
  return table;
}

INSTANTIATE_TEST_SUITE_P(All, NcclOnGpus, ::testing::ValuesIn(Table()), [](const auto& info) {
  return std::to_string(std::get<0>(info.param)) + std::get<1>(info.param).name;
});

}  // namespace
}  // namespace lockstep::cuda
