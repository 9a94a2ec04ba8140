// A device with memory that is not the host's and with queued work, for tests of the code between an executor and a
// device. Its addresses cannot be read or written: a host that does so dies at once. Nothing happens before Synchronize
// or Await, so tests find code that reads a result too early or frees memory that a copy still needs. A copy ahead runs
// as early as allowed, so tests find code that lets it overwrite memory that is still to be read. One thread at a time
// uses a device and its objects. Each rank has its own.

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
  uint64_t next() const { return next_; }  // the number of the next queued work
  // Queues `work` before the work of this number.
  void Insert(uint64_t before, Work work);
  // Does the work before this number in order. After an error, drops the rest and returns the error until Forget.
  absl::Status Drain(uint64_t until);
  void Forget() { failed_ = absl::OkStatus(); }

 private:
  struct Item {
    uint64_t number;  // the number of the preceding work, if this was inserted
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

  // Returns the host address of the bytes at a device address. InvalidArgument unless these bytes lie in one live piece
  // of memory.
  absl::StatusOr<std::byte*> Find(const void* address, size_t bytes) const;

 private:
  class Event;
  // Bytes that CopyToHost will write to the caller's memory.
  struct Delivery {
    std::byte* host;
    std::vector<std::byte> bytes;
  };

  absl::StatusOr<std::byte*> Take(size_t bytes, std::string_view label, std::byte* base);
  void Free(std::byte* address, std::byte* base);
  bool IsPinned(const std::byte* host) const;
  absl::Status Finish(uint64_t until);  // does the work before this number, and its deliveries

  SimulatedStream stream_;
  std::byte* addresses_ = nullptr;  // addresses of the device: a range that is mapped without access rights
  std::byte* contents_ = nullptr;   // the bytes of these addresses; pinned memory is used by its own addresses
  size_t used_ = 0;                 // never used again, so that uses of a freed address are found
  std::map<size_t, size_t> live_;   // begin and bytes of each live piece
  std::vector<Delivery> deliveries_;
  uint64_t failures_ = 0;  // the number of failures of Synchronize
  absl::Status failure_;   // the last failure
};

}  // namespace lockstep
