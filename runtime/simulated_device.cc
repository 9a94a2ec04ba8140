#include "runtime/simulated_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "runtime/buffer.h"

namespace lockstep {
namespace {

constexpr size_t kBytes = size_t{64} << 30;  // the addresses of a device, of which few are ever used
constexpr size_t kPage = 4096;

class SimulatedMemory final : public DeviceMemory {
 public:
  SimulatedMemory(std::byte* data, size_t bytes, std::function<void()> free)
      : DeviceMemory(data, bytes), free_(std::move(free)) {}
  ~SimulatedMemory() override { free_(); }

 private:
  const std::function<void()> free_;
};

std::byte* Map(int rights) {
  void* memory = mmap(nullptr, kBytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LOCKSTEP_CHECK(memory != MAP_FAILED) << "no " << kBytes << " bytes of addresses";
  return static_cast<std::byte*>(memory);
}

}  // namespace

class SimulatedDevice::Event final : public DeviceEvent {
 public:
  uint64_t place = 0;     // work with smaller numbers is before it
  uint64_t failures = 0;  // the device's failures_ when it was recorded
};

void SimulatedStream::Insert(uint64_t before, Work work) {
  const auto place =
      std::find_if(queue_.begin(), queue_.end(), [&](const Item& item) { return item.number >= before; });
  queue_.insert(place, {before - 1, std::move(work)});
}

absl::Status SimulatedStream::Drain(uint64_t until) {
  while (!queue_.empty() && queue_.front().number < until) {
    const Work work = std::move(queue_.front().work);
    queue_.pop_front();
    if (failed_.ok()) failed_ = work();
  }
  if (!failed_.ok()) queue_.clear();
  return failed_;
}

SimulatedDevice::SimulatedDevice()
    : Device("simulated", /*is_host=*/false),
      stream_(*this),
      addresses_(Map(PROT_NONE)),
      contents_(Map(PROT_READ | PROT_WRITE)) {}

SimulatedDevice::~SimulatedDevice() {
  munmap(addresses_, kBytes);
  munmap(contents_, kBytes);
}

absl::StatusOr<std::byte*> SimulatedDevice::Take(size_t bytes, std::string_view label, std::byte* base) {
  const size_t size = AlignUp(bytes + 1);  // two pieces never begin at the same address
  if (size > kBytes - used_) {
    return ErrorStream(absl::StatusCode::kResourceExhausted) << name() << " has no " << bytes << " bytes for " << label;
  }
  live_.emplace(used_, bytes);
  std::byte* data = base + used_;
  used_ += size;
  return data;
}

void SimulatedDevice::Free(std::byte* address, std::byte* base) {
  const auto found = live_.find(static_cast<size_t>(address - base));
  LOCKSTEP_CHECK(found != live_.end()) << "freed twice";
  const size_t begin = (found->first + kPage - 1) / kPage * kPage;  // only the pages that it has alone
  const size_t end = (found->first + found->second) / kPage * kPage;
  if (begin < end) madvise(contents_ + begin, end - begin, MADV_DONTNEED);
  live_.erase(found);
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> SimulatedDevice::Allocate(size_t bytes, std::string_view label) {
  ASSIGN_OR_RETURN(std::byte * data, Take(bytes, label, addresses_));
  return std::make_unique<SimulatedMemory>(data, bytes, [this, data] { Free(data, addresses_); });
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> SimulatedDevice::AllocatePinned(size_t bytes, std::string_view label) {
  ASSIGN_OR_RETURN(std::byte * data, Take(bytes, label, contents_));
  return std::make_unique<SimulatedMemory>(data, bytes, [this, data] { Free(data, contents_); });
}

bool SimulatedDevice::IsPinned(const std::byte* host) const { return host >= contents_ && host < contents_ + kBytes; }

absl::StatusOr<std::byte*> SimulatedDevice::Find(const void* address, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(address);
  if (at >= addresses_ && at < addresses_ + kBytes) {
    const auto offset = static_cast<size_t>(at - addresses_);
    auto piece = live_.upper_bound(offset);
    if (piece != live_.begin()) {
      --piece;
      if (offset + bytes <= piece->first + piece->second) return contents_ + offset;
    }
  }
  return InvalidArgument() << "address " << address << ", " << bytes << " bytes: not memory of the device " << name();
}

absl::Status SimulatedDevice::CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) {
  ASSIGN_OR_RETURN(std::byte * to, Find(device, bytes));
  if (bytes == 0) return absl::OkStatus();
  if (IsPinned(host)) {
    stream_.Enqueue([=] {
      std::memcpy(to, host, bytes);
      return absl::OkStatus();
    });
  } else {
    stream_.Enqueue([to, taken = std::vector<std::byte>(host, host + bytes)] {
      std::memcpy(to, taken.data(), taken.size());
      return absl::OkStatus();
    });
  }
  return absl::OkStatus();
}

absl::Status SimulatedDevice::CopyToHost(std::byte* host, const std::byte* device, size_t bytes) {
  ASSIGN_OR_RETURN(const std::byte* from, Find(device, bytes));
  if (bytes == 0) return absl::OkStatus();
  stream_.Enqueue([=, this, pinned = IsPinned(host)] {
    if (pinned) std::memcpy(host, from, bytes);
    else deliveries_.push_back({host, {from, from + bytes}});
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status SimulatedDevice::CopyWithin(std::byte* to, const std::byte* from, size_t bytes) {
  ASSIGN_OR_RETURN(const std::byte* source, Find(from, bytes));
  ASSIGN_OR_RETURN(std::byte * target, Find(to, bytes));
  stream_.Enqueue([=] {
    std::memmove(target, source, bytes);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status SimulatedDevice::RunOnHost(std::function<absl::Status()> function) {
  stream_.Enqueue(std::move(function));
  return absl::OkStatus();
}

absl::Status SimulatedDevice::CopyAhead(std::byte* device, const std::byte* host, size_t bytes, DeviceEvent& after) {
  ASSIGN_OR_RETURN(std::byte * to, Find(device, bytes));
  if (bytes == 0) return absl::OkStatus();
  const uint64_t place = static_cast<const Event&>(after).place;
  stream_.Insert(std::max<uint64_t>(place, 1), [to, taken = std::vector<std::byte>(host, host + bytes)] {
    std::memcpy(to, taken.data(), taken.size());
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceEvent>> SimulatedDevice::CreateEvent() { return std::make_unique<Event>(); }

absl::Status SimulatedDevice::Record(DeviceEvent& event) {
  auto& recorded = static_cast<Event&>(event);
  recorded.place = stream_.next();
  recorded.failures = failures_;
  return absl::OkStatus();
}

absl::Status SimulatedDevice::Await(DeviceEvent& event) {
  const auto& awaited = static_cast<const Event&>(event);
  if (awaited.place > 0 && awaited.failures != failures_) return failure_;
  return Finish(awaited.place);
}

absl::Status SimulatedDevice::Finish(uint64_t until) {
  const absl::Status status = stream_.Drain(until);
  for (const Delivery& delivery : deliveries_) {
    if (status.ok()) std::memcpy(delivery.host, delivery.bytes.data(), delivery.bytes.size());
  }
  deliveries_.clear();
  return status;
}

absl::Status SimulatedDevice::Synchronize() {
  const absl::Status status = Finish(stream_.next());
  stream_.Forget();
  if (status.ok()) return status;
  ++failures_;
  return failure_ = status;
}

}  // namespace lockstep
