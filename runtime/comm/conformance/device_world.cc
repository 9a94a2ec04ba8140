#include "runtime/comm/conformance/device_world.h"

#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>

#include "core/status.h"
#include "gtest/gtest.h"
#include "runtime/comm/conformance/watchdog.h"
#include "runtime/comm/in_process.h"

namespace lockstep {

void ForEachRank(const DeviceWorld& world, int first_device, int ranks, const Communicator::Options& options,
                 const std::string& test, const std::function<absl::Status(Communicator& host, Device& device)>& rank) {
  SCOPED_TRACE(test + " on " + std::to_string(ranks) + " ranks");
  auto hosts = CreateInProcess(ranks, options);
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  std::atomic<int> ran{0};
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  Watchdog watchdog;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r, host = std::move((*hosts)[static_cast<size_t>(r)])]() mutable {
      watchdog.Begin(r, test);
      absl::Status& result = results[static_cast<size_t>(r)];
      const auto device = world.make_device(first_device + r);
      result = device.ok() ? rank(*host, **device) : device.status();
      if (!result.ok()) host->Abort(result);
      host.reset();
      watchdog.End(r);
      ++ran;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, ranks);
  for (int r = 0; r < ranks; ++r) {
    EXPECT_TRUE(results[static_cast<size_t>(r)].ok()) << "rank " << r << ": " << results[static_cast<size_t>(r)];
  }
}

void RunConformance(const DeviceWorld& world, int first_device, int ranks, const ConformanceCase& test) {
  ForEachRank(world, first_device, ranks, test.options, test.name,
              [&](Communicator& host, Device& device) -> absl::Status {
                ASSIGN_OR_RETURN(auto of_device, world.make_communicator(host, device));
                const auto communicator = AsHostCommunicator(std::move(of_device), device);
                EXPECT_EQ(communicator->size(), ranks);
                EXPECT_EQ(communicator->timeout(), test.options.timeout);
                const absl::Status status = test.run(*communicator);
                if (!status.ok()) communicator->Abort(status);
                return status;
              });
}

void RunLot(const DeviceWorld& world, const std::vector<WaitingWorld>& lot) {
  std::vector<std::thread> worlds;
  for (const WaitingWorld& each : lot)
    worlds.emplace_back([&] { RunConformance(world, each.first_device, each.ranks, each.test); });
  for (std::thread& each : worlds) each.join();
}

}  // namespace lockstep
