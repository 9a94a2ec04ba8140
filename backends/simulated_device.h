// A device whose memory is not the host's and whose work is queued, for tests of what lies between an executor and a
// device. Its addresses can be read and written by nobody: a host that does dies at once. Nothing happens before
// Synchronize, so whoever reads a result too early, or gives up memory that a copy still needs, is found. One thread
// at a time uses a device and all that is of it; each rank has its own.

#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/device.h"

namespace lockstep {

class SimulatedDevice;

// The queue of a simulated device.
class Stream {
 public:
  using Work = std::function<absl::Status()>;

  explicit Stream(SimulatedDevice& device) : device_(device) {}
  SimulatedDevice& device() const { return device_; }
  size_t size() const { return queue_.size(); }
  void Enqueue(Work work) { queue_.push_back(std::move(work)); }
  // Does all work in order. After an error the rest is dropped.
  absl::Status Drain();

 private:
  SimulatedDevice& device_;
  std::deque<Work> queue_;
};

class SimulatedDevice final : public Device {
 public:
  SimulatedDevice();
  ~SimulatedDevice() override;

  Stream* stream() override { return &stream_; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) override;
  absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) override;
  absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) override;
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override;
  absl::Status Synchronize() override { return stream_.Drain(); }

  // Where the host finds what lies at an address of the device. InvalidArgument unless these bytes are of one piece of
  // memory that was given out and is not freed.
  absl::StatusOr<std::byte*> Find(const void* address, size_t bytes) const;
  void Free(std::byte* address);

 private:
  Stream stream_;
  std::byte* addresses_ = nullptr;  // of the device: a range that is mapped without any right
  std::byte* contents_ = nullptr;   // the bytes behind it
  size_t used_ = 0;                 // never used again, so that an address that was freed is found
  std::map<size_t, size_t> live_;   // begin and bytes of what is given out
};

// The kernels of the CPU on simulated devices: what a kernel is called with must be of its device.
std::unique_ptr<Backend> CreateSimulatedBackend();

// This rank's end of a communicator of devices, by way of the host: each collective is queued, takes its operands from
// the device to `host`, the ranks' communicator, and puts its results back. Both outlive it. `splits`, if given, counts
// how often it is split.
std::unique_ptr<Communicator> CreateSimulatedCommunicator(Communicator& host, SimulatedDevice& device,
                                                          int* splits = nullptr);

}  // namespace lockstep
