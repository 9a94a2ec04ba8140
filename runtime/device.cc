#include "runtime/device.h"

#include <cstdlib>
#include <cstring>

#include "core/status.h"
#include "runtime/buffer.h"

namespace lockstep {
namespace {

class HostMemory : public DeviceMemory {
 public:
  HostMemory(std::byte* data, size_t bytes) : DeviceMemory(data, bytes) {}
  ~HostMemory() override { std::free(data()); }
};

class HostEvent final : public DeviceEvent {};

class HostDevice : public Device {
 public:
  HostDevice() : Device("host", /*is_host=*/true) {}

  Stream* stream() override { return nullptr; }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes, std::string_view label) override {
    const size_t rounded = AlignUp(std::max<size_t>(bytes, 1));
    void* data = std::aligned_alloc(kBufferAlignment, rounded);
    if (data == nullptr) {
      return ErrorStream(absl::StatusCode::kResourceExhausted)
             << "the host has no " << bytes << " bytes of memory for " << label;
    }
    std::memset(data, 0, rounded);
    return std::make_unique<HostMemory>(static_cast<std::byte*>(data), bytes);
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes, std::string_view label) override {
    return Allocate(bytes, label);
  }
  absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) override {
    return CopyWithin(device, host, bytes);
  }
  absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) override {
    return CopyWithin(host, device, bytes);
  }
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent&) override {
    return CopyWithin(device, host, bytes);
  }
  absl::Status RunOnHost(std::function<absl::Status()> function) override { return function(); }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override { return std::make_unique<HostEvent>(); }
  absl::Status Record(DeviceEvent&) override { return absl::OkStatus(); }
  absl::Status Await(DeviceEvent&) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

}  // namespace

std::unique_ptr<Device> CreateHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace lockstep
