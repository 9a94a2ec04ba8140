// The memory in which an executable's buffers lie, and how bytes get there and back. The executor asks a Device for
// memory and never touches device memory itself; kernels know what kind of device they were compiled for. A Device may
// be shared by executors of one thread; the host's may be used by any number of threads.

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

// A queue of a device: what it holds runs in the order in which it came, some time after the call that put it there. A
// kind of device derives a class of its own, and its kernels know which one they are called with.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

 protected:
  Stream() = default;
};

// A piece of memory of a device, freed with this object. data() is an address of the device, or of the host where
// AllocatePinned gave it; aligned to kBufferAlignment. The device outlives it, and may free it later than this object
// where work that was queued before still uses it.
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

// A place in the order of a device's stream: where it was recorded last; before all else if it never was. The device
// outlives it.
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

  // True if device memory is host memory: inputs are then read, and results written, in the caller's memory.
  bool is_host() const { return is_host_; }

  // The queue in which the executor's steps run. Null if there is none: then a step is done when its Run returns.
  virtual Stream* stream() = 0;

  // Zeroed memory; 0 bytes are fine. `label` appears in the message when there is not enough.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) = 0;

  // The same of the host's memory that the device reads and writes by itself: it is copied from and to in the order of
  // stream(), as functions of RunOnHost need it.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes, std::string_view label) = 0;

  // Copies between host and device memory, and within the device, in the order of stream(). Of memory of AllocatePinned
  // the host's side, too, is read and written in that order. Of all other memory of the host
  //  * what CopyToDevice reads is taken before it returns: it may then be changed and freed;
  //  * what CopyToHost writes is there when Synchronize() has returned OK, or Await() of an event that was recorded
  //    after it. It is touched by nobody but these three functions, and has to live until then, or until Synchronize()
  //    or CopyToHost itself returns with an error.
  virtual absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) = 0;
  virtual absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) = 0;

  // CopyToDevice that does not wait for all that stream() holds: it comes after what is before `after`, as early as the
  // device can, and before what stream() gets from now on. What it reads is taken before it returns.
  virtual absl::Status CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent& after) = 0;

  // Queues a function of the host in the order of stream(): it runs when all before it is done, in any thread, and what
  // comes after waits for it; without a stream it runs at once. It must not call the device. Its error is one of
  // Synchronize() (without a stream: of this call). After an error the functions that are queued are dropped: destroyed
  // without having run.
  virtual absl::Status RunOnHost(std::function<absl::Status()> function) = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() = 0;

  // Puts the event after all that stream() holds now.
  virtual absl::Status Record(DeviceEvent& event) = 0;

  // Returns when all before the event is done; stream() may hold more. An error is of what was queued before the event,
  // or after it, or has been returned by a Synchronize() since the event was recorded. After one no memory of the host
  // is written, and Synchronize() has to be called, which alone forgets it.
  virtual absl::Status Await(DeviceEvent& event) = 0;

  // Returns when all that stream() holds is done, or will never be; also reports what failed there since the last time.
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
