#include "runtime/comm/conformance/device.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/status.h"

namespace lockstep {
namespace {

// A range of host bytes and the device memory that represents it.
struct Mirror {
  std::byte* host = nullptr;
  size_t bytes = 0;
  std::byte* device = nullptr;

  bool Holds(const void* address, size_t n) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= host && at + n <= host + bytes;
  }
  std::byte* Of(const void* address) const { return device + (static_cast<const std::byte*>(address) - host); }
};

// The registered memory that the suite sees.
class MirroredMemory final : public RegisteredMemory {
 public:
  MirroredMemory(std::unique_ptr<RegisteredMemory> device, std::byte* host, std::map<std::byte*, Mirror>& all)
      : RegisteredMemory(host, device->bytes()), device_(std::move(device)), all_(all) {
    all_[host] = {host, bytes(), device_->data()};
  }
  ~MirroredMemory() override {
    all_.erase(data());
    std::free(data());
  }

 private:
  const std::unique_ptr<RegisteredMemory> device_;
  std::map<std::byte*, Mirror>& all_;
};

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::unique_ptr<Communicator> of_device, Device& device)
      : Communicator(of_device->rank(), of_device->hosts(), of_device->transport(),
                     {.reduces_in_rank_order = of_device->reduces_in_rank_order(), .timeout = of_device->timeout()}),
        device_(device),
        communicator_(std::move(of_device)) {}

  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Allocate(size_t bytes, std::string_view label) override {
    ASSIGN_OR_RETURN(auto memory, communicator_->Allocate(bytes, label));
    const size_t rounded = (memory->bytes() / 64 + 1) * 64;
    void* host = std::aligned_alloc(64, rounded);
    LOCKSTEP_CHECK(host != nullptr);
    std::fill_n(static_cast<std::byte*>(host), rounded, std::byte{0});
    return std::make_unique<MirroredMemory>(std::move(memory), static_cast<std::byte*>(host), registered_);
  }

  absl::StatusOr<std::unique_ptr<RegisteredMemory>> AllocateShared(size_t bytes, std::string_view label) override {
    return communicator_->AllocateShared(bytes, label);
  }

  absl::StatusOr<Ticket> Start(const Collective& collective, const void* from, void* to, const Call& call) override {
    // A call with a negative count is refused before anything is touched, and a call that is only compared touches
    // nothing.
    const bool is_valid = !call.compared_only && std::all_of(collective.counts.begin(), collective.counts.end(),
                                                             [](int64_t count) { return count >= 0; });
    const size_t in_bytes = is_valid ? InputBytes(collective, size()) : 0;
    const Range input = ReadsInput(collective, rank()) ? Range{from, in_bytes} : Range{nullptr, 0};
    const Range output{to, is_valid ? OutputBytes(collective, size()) : 0};
    StartedCollective entry;
    ASSIGN_OR_RETURN(std::byte* const in, Place(input, output, entry.memory[0], nullptr));
    ASSIGN_OR_RETURN(std::byte* const out, Place(output, input, entry.memory[1], entry.memory[0]));
    // Also copies the old contents of the output, so that an output that is not written is detected.
    for (const auto& [at, range] : {std::pair(out, output), std::pair(in, input)}) {
      if (at == nullptr) continue;
      RETURN_IF_ERROR(device_.CopyToDevice(at, static_cast<const std::byte*>(range.address), range.bytes));
    }
    Call on_device = call;
    on_device.stream = device_.stream();
    ASSIGN_OR_RETURN(const Ticket ticket, communicator_->Start(collective, in, out, on_device));
    if (out != nullptr) {
      entry.host = static_cast<std::byte*>(const_cast<void*>(output.address));
      entry.device = out;
      entry.bytes = output.bytes;
    }
    started_[ticket.id] = std::move(entry);
    return ticket;
  }

  absl::Status Wait(Ticket ticket, Stream*) override {
    RETURN_IF_ERROR(communicator_->Wait(ticket, device_.stream()));
    const auto started = started_.find(ticket.id);
    LOCKSTEP_CHECK(started != started_.end()) << ticket.id;
    const StartedCollective entry = std::move(started->second);
    started_.erase(started);
    if (entry.bytes > 0) RETURN_IF_ERROR(device_.CopyToHost(entry.host, entry.device, entry.bytes));
    return device_.Synchronize();
  }

  absl::Status Barrier(std::string_view label) override { return communicator_->Barrier(label); }
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view bytes, std::string_view label) override {
    return communicator_->AllGatherBytes(bytes, label);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, std::string_view label) override {
    ASSIGN_OR_RETURN(auto part, communicator_->Split(color, label));
    return AsHostCommunicator(std::move(part), device_);
  }
  absl::Status CheckPeers() override { return communicator_->CheckPeers(); }
  void Abort(const absl::Status& cause) override { communicator_->Abort(cause); }

 private:
  struct Range {
    const void* address;
    size_t bytes;
    uintptr_t begin() const { return reinterpret_cast<uintptr_t>(address); }
    uintptr_t end() const { return begin() + bytes; }
  };
  struct StartedCollective {
    std::byte* host = nullptr;  // the output
    std::byte* device = nullptr;
    size_t bytes = 0;
    std::shared_ptr<DeviceMemory> memory[2];  // for operands that are not registered; perhaps one for both
  };

  // Returns the device address of a range. Operands that overlap on the host also overlap on the device.
  absl::StatusOr<std::byte*> Place(const Range& range, const Range& other, std::shared_ptr<DeviceMemory>& memory,
                                   const std::shared_ptr<DeviceMemory>& memory_of_other) {
    if (range.address == nullptr || range.bytes == 0) return static_cast<std::byte*>(nullptr);
    for (const auto& [begin, mirror] : registered_) {
      if (mirror.Holds(range.address, range.bytes)) return mirror.Of(range.address);
    }
    const bool overlap = range.begin() < other.end() && other.begin() < range.end();
    const uintptr_t begin = overlap ? std::min(range.begin(), other.begin()) : range.begin();
    const uintptr_t end = overlap ? std::max(range.end(), other.end()) : range.end();
    if (overlap && memory_of_other != nullptr) memory = memory_of_other;
    if (memory == nullptr) {
      ASSIGN_OR_RETURN(memory, device_.Allocate(end - begin, "operand"));
    }
    return memory->data() + (range.begin() - begin);
  }

  Device& device_;
  std::map<std::byte*, Mirror> registered_;
  std::map<uint64_t, StartedCollective> started_;
  const std::unique_ptr<Communicator> communicator_;
};

}  // namespace

std::unique_ptr<Communicator> AsHostCommunicator(std::unique_ptr<Communicator> communicator, Device& device) {
  return std::make_unique<HostCommunicator>(std::move(communicator), device);
}

std::vector<std::vector<WaitingWorld>> LotsOfWaitingWorlds() {
  std::vector<std::vector<WaitingWorld>> lots;
  int used = kDevicesOfLot;  // devices of the last lot
  for (const ConformanceCase& test : WaitingCases()) {
    for (int ranks : {2, 3}) {
      if (ranks < test.min_ranks) continue;
      if (used + ranks > kDevicesOfLot) {
        lots.emplace_back();
        used = 0;
      }
      lots.back().push_back({test, ranks, used});
      used += ranks;
    }
  }
  return lots;
}

}  // namespace lockstep
