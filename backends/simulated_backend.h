// The kernels of the CPU on devices that are not the host, for tests: each is queued as a function of the host, and
// what it is called with must be of its device.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "backends/backend.h"
#include "runtime/device.h"

namespace lockstep {

// A kind of device whose memory the host can find.
struct SimulatedMachine {
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> make_device;
  std::function<Device&(Stream&)> device_of;
  // Where the host finds these bytes of a device. InvalidArgument if they are not memory of it.
  std::function<absl::StatusOr<std::byte*>(const Device&, const void* address, size_t bytes)> find;
};

std::unique_ptr<Backend> CreateSimulatedBackend(SimulatedMachine machine);

// On a SimulatedDevice.
std::unique_ptr<Backend> CreateSimulatedBackend();

}  // namespace lockstep
