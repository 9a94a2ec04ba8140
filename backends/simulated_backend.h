// Runs the CPU's kernels on devices that are not the host, for tests. Each kernel is queued as a host function, and its
// operands must be in memory of its device.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "backends/backend.h"
#include "runtime/device.h"

namespace lockstep {

// A kind of device whose memory the host can access.
struct SimulatedMachine {
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> make_device;
  std::function<Device&(Stream&)> device_of;
  // Returns the host address of these bytes of a device. Returns InvalidArgument if they are not the device's memory.
  std::function<absl::StatusOr<std::byte*>(const Device&, const void* address, size_t bytes)> find;
};

std::unique_ptr<Backend> CreateSimulatedBackend(SimulatedMachine machine);

// Runs on a SimulatedDevice.
std::unique_ptr<Backend> CreateSimulatedBackend();

}  // namespace lockstep
