// A device whose memory is not the host's and whose work is queued, for tests of what lies between an executor and a
// device. Its addresses can be read and written by nobody: a host that does dies at once. Nothing happens before
// Synchronize or Await, so whoever reads a result too early, or gives up memory that a copy still needs, is found; but
// a copy ahead comes as early as it may, so whoever lets it overwrite what is still to be read is found, too. One
// thread at a time uses a device and all that is of it; each rank has its own.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device.h"

namespace lockstep {

class SimulatedDevice;

class SimulatedStream final : public Stream {
 public:
  using Work = std::function<absl::Status()>;

  explicit SimulatedStream(SimulatedDevice& device) : device_(device) {}
  SimulatedDevice& device() const { return device_; }
  size_t size() const { return queue_.size(); }
  void Enqueue(Work work) { queue_.push_back({next_++, std::move(work)}); }
  uint64_t next() const { return next_; }  // the number of the work that is queued next
  // Queues it before the work of this number.
  void Insert(uint64_t before, Work work);
  // Does the work before this number in order. After an error, which it returns until Forget, the rest is dropped.
  absl::Status Drain(uint64_t until);
  void Forget() { failed_ = absl::OkStatus(); }

 private:
  struct Item {
    uint64_t number;  // that of the work before it, if it was inserted
    Work work;
  };

  SimulatedDevice& device_;
  std::deque<Item> queue_;  // by number
  uint64_t next_ = 1;
  absl::Status failed_;
};

class SimulatedDevice final : public Device {
 public:
  SimulatedDevice();
  ~SimulatedDevice() override;

  SimulatedStream* stream() override { return &stream_; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes, std::string_view label) override;
  absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) override;
  absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent& after) override;
  absl::Status RunOnHost(std::function<absl::Status()> function) override;
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override;
  absl::Status Record(DeviceEvent& event) override;
  absl::Status Await(DeviceEvent& event) override;
  absl::Status Synchronize() override;

  // Where the host finds what lies at an address of the device. InvalidArgument unless these bytes are of one piece of
  // memory that was given out and is not freed.
  absl::StatusOr<std::byte*> Find(const void* address, size_t bytes) const;

 private:
  class Event;
  // What CopyToHost has for memory that is the caller's.
  struct Delivery {
    std::byte* host;
    std::vector<std::byte> bytes;
  };

  absl::StatusOr<std::byte*> Take(size_t bytes, std::string_view label, std::byte* base);
  void Free(std::byte* address, std::byte* base);
  bool IsPinned(const std::byte* host) const;
  absl::Status Finish(uint64_t until);  // the work before this number, and what is delivered then

  SimulatedStream stream_;
  std::byte* addresses_ = nullptr;  // of the device: a range that is mapped without any right
  std::byte* contents_ = nullptr;   // the bytes behind it; those of pinned memory are used by their own addresses
  size_t used_ = 0;                 // never used again, so that an address that was freed is found
  std::map<size_t, size_t> live_;   // begin and bytes of what is given out
  std::vector<Delivery> deliveries_;
  uint64_t failures_ = 0;  // of Synchronize
  absl::Status failure_;   // the last of them
};

}  // namespace lockstep
