// Runs tests over communicators of devices, with a thread for each rank. Failures are reported to GoogleTest.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/conformance/cases.h"
#include "runtime/comm/conformance/device.h"
#include "runtime/communicator.h"
#include "runtime/device.h"

namespace lockstep {

// How the devices of a world, by number, and their communicators are made. Called in the thread of the rank.
struct DeviceWorld {
  std::function<absl::StatusOr<std::unique_ptr<Device>>(int number)> make_device;
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(Communicator& host, Device& device)> make_communicator;
};

// Runs `rank` once for each rank, with its communicator of the host and its device. The devices are numbered from
// `first_device`. A rank that returns an error aborts the others.
void ForEachRank(const DeviceWorld& world, int first_device, int ranks, const Communicator::Options& options,
                 const std::string& test, const std::function<absl::Status(Communicator& host, Device& device)>& rank);

// Runs a case of the conformance suite over the communicators of the devices.
void RunConformance(const DeviceWorld& world, int first_device, int ranks, const ConformanceCase& test);

// Runs the worlds of a lot (device.h) at once.
void RunLot(const DeviceWorld& world, const std::vector<WaitingWorld>& lot);

}  // namespace lockstep
