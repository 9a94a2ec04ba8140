// The memory in which an executable's buffers lie, and how bytes get there and back. The executor asks a Device for
// memory and never touches device memory itself; kernels know what kind of device they were compiled for. A Device may
// be shared by executors of one thread; the host's may be used by any number of threads.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

class Stream;  // a queue of a device, see runtime/communicator.h

// A piece of device memory, freed with this object. data() is an address of the device, aligned to kBufferAlignment.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  DeviceMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* data_;
  size_t bytes_;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }  // "host", "cuda:0"

  // True if device memory is host memory: inputs are then read, and results written, in the caller's memory.
  bool is_host() const { return is_host_; }

  // The queue in which the executor's steps run. Null if there is none: then a step is done when its Run returns. An
  // executor that returns to its caller, with an error too, has synchronized it.
  virtual Stream* stream() = 0;

  // Zeroed memory; 0 bytes are fine. `label` appears in the message when there is not enough.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) = 0;

  // Copies between host and device memory, and within the device, in the order of stream(). The host's memory must not
  // change before Synchronize() returns.
  virtual absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) = 0;
  virtual absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) = 0;

  // Returns when all that stream() holds is done; also reports what failed there meanwhile.
  virtual absl::Status Synchronize() = 0;

 protected:
  Device(std::string name, bool is_host) : name_(std::move(name)), is_host_(is_host) {}

 private:
  const std::string name_;
  const bool is_host_;
};

// The host's memory.
std::unique_ptr<Device> CreateHostDevice();

}  // namespace lockstep
