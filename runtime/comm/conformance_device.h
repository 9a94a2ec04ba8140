// A communicator of a device as one of the host's memory, so that the conformance suite runs over it as over all
// others: operands are copied to the device and back, and an error of the stream is one of the wait.

#pragma once

#include <memory>

#include "runtime/communicator.h"
#include "runtime/device.h"

namespace lockstep {

// Of the same rank. `device` is that of `communicator`, and outlives the result.
std::unique_ptr<Communicator> AsHostCommunicator(std::unique_ptr<Communicator> communicator, Device& device);

}  // namespace lockstep
