// The memory of an executable's buffers, and the copies to and from it. The executor asks a Device for memory and never
// touches device memory itself. Kernels know the kind of device for which they were compiled. Executors of one thread
// may share a Device. The host's device may be used by any number of threads.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// A queue of a device. Work runs in the order in which it was queued, some time after the call that queued it. Each
// kind of device derives its own class, and its kernels know that class.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

 protected:
  Stream() = default;
};

// A piece of memory of a device, freed with this object. data() is an address of the device, or of the host if
// AllocatePinned returned it, aligned to kBufferAlignment. The device must outlive it. The device may free the memory
// later than this object while work that was queued before still uses it.
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

// A position in a device's stream: where it was last recorded, or before all work if it never was. The device must
// outlive it.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

 protected:
  DeviceEvent() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }  // "host", "cuda:0"

  // True if device memory is host memory. Then steps read inputs and write results directly in the caller's memory.
  bool is_host() const { return is_host_; }

  // The queue in which the executor's steps run. Null if there is none: then a step is done when its Run returns.
  virtual Stream* stream() = 0;

  // Allocates zeroed memory; 0 bytes are fine. `label` appears in the message if there is not enough memory.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) = 0;

  // Allocates host memory that the device reads and writes by itself. Copies from and to it happen in the order of
  // stream(), as functions of RunOnHost need.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes, std::string_view label) = 0;

  // Copy between host and device memory, and within the device, in the order of stream(). Host memory of AllocatePinned
  // is read and written in that order. For other host memory:
  //  * CopyToDevice reads it before returning; it may then be changed and freed;
  //  * the result of CopyToHost is present when Synchronize() has returned OK, or Await() of an event that was recorded
  //    after it. Only these three functions touch the memory. It must live until then, or until Synchronize() or
  //    CopyToHost itself returns an error.
  virtual absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) = 0;
  virtual absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) = 0;

  // Copies to the device without waiting for all work of stream(): after the work before the event `after`, as early as
  // the device can, and before later work of stream(). Reads the host memory before returning.
  virtual absl::Status CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent& after) = 0;

  // Queues a host function in the order of stream(). It runs in any thread when all earlier work is done, and later
  // work waits for it. Without a stream it runs at once. It must not call the device. Synchronize() returns its error
  // (without a stream, this call does). After an error, the queued functions are destroyed without being run.
  virtual absl::Status RunOnHost(std::function<absl::Status()> function) = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() = 0;

  // Puts the event after the present work of stream().
  virtual absl::Status Record(DeviceEvent& event) = 0;

  // Returns when all work before the event is done; stream() may hold more. An error may come from work before or after
  // the event, or may have been returned by a Synchronize() since the event was recorded. After an error, no host
  // memory is written, and Synchronize() must be called, because only it clears the error.
  virtual absl::Status Await(DeviceEvent& event) = 0;

  // Returns when all work of stream() is done or will never be done. Also returns errors of the stream since the last
  // call.
  virtual absl::Status Synchronize() = 0;

 protected:
  Device(std::string name, bool is_host) : name_(std::move(name)), is_host_(is_host) {}

 private:
  const std::string name_;
  const bool is_host_;
};

// Returns a device for host memory.
std::unique_ptr<Device> CreateHostDevice();

}  // namespace lockstep
