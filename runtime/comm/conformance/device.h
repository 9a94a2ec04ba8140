// A communicator of a device as one of the host's memory, so that the conformance suite runs over it as over all
// others: operands are copied to the device and back, and an error of the stream is one of the wait.

#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/conformance/cases.h"
#include "runtime/communicator.h"
#include "runtime/device.h"

namespace lockstep {

// Of the same rank. `device` is that of `communicator`, and outlives the result.
std::unique_ptr<Communicator> AsHostCommunicator(std::unique_ptr<Communicator> communicator, Device& device);

// A world of a case that waits. Its ranks have the devices from `first_device` on.
struct WaitingWorld {
  ConformanceCase test;
  int ranks = 0;
  int first_device = 0;
};

// Of each case that waits worlds of 2 and of 3 ranks, as far as it has so many. Those of a lot run at once, and have at
// most kDevicesOfLot devices: under the thread sanitizer there are no addresses for many more fake GPUs.
inline constexpr int kDevicesOfLot = 30;
std::vector<std::vector<WaitingWorld>> LotsOfWaitingWorlds();

}  // namespace lockstep
