// Adapts a communicator of a device to one of host memory, so that the conformance suite can run over it: operands are
// copied to the device and back, and an error of the stream is returned by the wait.

#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/conformance/cases.h"
#include "runtime/communicator.h"
#include "runtime/device.h"

namespace lockstep {

// Returns an adapter with the same rank. `device` is that of `communicator`, and must outlive the result.
std::unique_ptr<Communicator> AsHostCommunicator(std::unique_ptr<Communicator> communicator, Device& device);

// A world for a case that waits. Its ranks use the devices from `first_device` on.
struct WaitingWorld {
  ConformanceCase test;
  int ranks = 0;
  int first_device = 0;
};

// Returns worlds of 2 and 3 ranks for each case that waits, unless it needs more ranks. The worlds of a lot run at once
// and have at most kDevicesOfLot devices, because the thread sanitizer leaves no addresses for many more fake GPUs.
inline constexpr int kDevicesOfLot = 30;
std::vector<std::vector<WaitingWorld>> LotsOfWaitingWorlds();

}  // namespace lockstep
