#include "runtime/comm/staged.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "core/status.h"
#include "runtime/comm/collective/operands.h"

namespace lockstep {
namespace {

class StagedMemory final : public RegisteredMemory {
 public:
  explicit StagedMemory(std::unique_ptr<DeviceMemory> memory)
      : RegisteredMemory(memory->data(), memory->bytes()), memory_(std::move(memory)) {}

 private:
  const std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace

// A collective from its start until the host's wait for it has succeeded, or until the communicator is destroyed. Peers
// may use its memory.
struct StagedCommunicator::StartedCollective {
  std::unique_ptr<DeviceMemory> input, output;  // pinned; no output means in place
  std::byte* device_output = nullptr;
  size_t output_bytes = 0;
  Ticket ticket;        // of the host's collective
  bool waited = false;  // the wait is queued

  std::byte* in() const { return input != nullptr ? input->data() : nullptr; }
  std::byte* out() const { return output != nullptr ? output->data() : in(); }
};

struct StagedCommunicator::Shared {
  explicit Shared(Communicator& communicator) : host(communicator) {}

  // Returns the error for a rank that dropped collectives. Its later calls would no longer match those of its peers.
  absl::Status Dropped() {
    host.Abort(FailedPrecondition() << "a failure of its device dropped collectives that were queued there");
    return host.CheckPeers();  // the error, which may be an earlier one
  }

  std::mutex running;   // held while a function runs
  bool closed = false;  // the communicator, and perhaps the host's, is destroyed; guarded by `running`
  Communicator& host;   // used by functions until `closed`
  // the number of functions that ran; guarded by `mutex`, like the following, which is held only for moments
  uint64_t ran = 0;
  std::mutex mutex;
  std::map<uint64_t, StartedCollective> started;    // by ticket
  std::vector<std::unique_ptr<DeviceMemory>> idle;  // pinned
};

StagedCommunicator::StagedCommunicator(Communicator& host, Device& device, Runs runs)
    : Communicator(host.rank(), host.hosts(), host.transport() + " via host",
                   {.is_host = device.is_host(),
                    .needs_host_in_stream = true,
                    .timeout = host.timeout(),
                    .recorder = host.recorder()}),
      shared_(std::make_shared<Shared>(host)),
      host_(host),
      device_(device),
      runs_(runs) {}

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> part, Device& device, Runs runs)
    : Communicator(part->rank(), part->hosts(), part->transport() + " via host",
                   {.is_host = device.is_host(),
                    .needs_host_in_stream = true,
                    .timeout = part->timeout(),
                    .recorder = part->recorder()}),
      shared_(std::make_shared<Shared>(*part)),
      own_(std::move(part)),
      host_(*own_),
      device_(device),
      runs_(runs) {}

StagedCommunicator::~StagedCommunicator() {
  bool in_flight;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    in_flight = !shared_->started.empty();
  }
  // Abort also ends a function that waits for peers. After that, no peer uses the memory of these collectives.
  if (in_flight) host_.Abort(FailedPrecondition() << "it destroyed its communicator with collectives in flight");
  const std::lock_guard<std::mutex> lock(shared_->running);
  shared_->closed = true;
  // The memory belongs to the device. A function that is kept would free it too late.
  const std::lock_guard<std::mutex> lock_data(shared_->mutex);
  shared_->started.clear();
  shared_->idle.clear();
}

// --- Queued calls -------------------------------------------------------------------------------------------------

absl::Status StagedCommunicator::Queue(std::function<absl::Status(Shared&)> work) {
  auto in_order = [shared = shared_, number = queued_++, work = std::move(work)]() -> absl::Status {
    const std::lock_guard<std::mutex> lock(shared->running);
    if (shared->closed) return FailedPrecondition() << "the communicator of a queued collective was destroyed";
    {
      const std::lock_guard<std::mutex> lock_data(shared->mutex);
      if (number == shared->ran) ++shared->ran;
      else shared->ran = 0;  // never equal again
    }
    return number + 1 == shared->ran ? work(*shared) : shared->Dropped();
  };
  if (runs_ == Runs::kInStream) return device_.RunOnHost(std::move(in_order));
  RETURN_IF_ERROR(device_.Synchronize());
  return in_order();
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> StagedCommunicator::TakePinned(size_t bytes, std::string_view label) {
  if (bytes == 0) return std::unique_ptr<DeviceMemory>();
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    auto& idle = shared_->idle;
    const auto fits = [&](const auto& memory) { return memory->bytes() >= bytes && memory->bytes() <= 2 * bytes; };
    const auto found = std::find_if(idle.begin(), idle.end(), fits);
    if (found != idle.end()) {
      std::unique_ptr<DeviceMemory> memory = std::move(*found);
      idle.erase(found);
      return memory;
    }
  }
  return device_.AllocatePinned(bytes, label);
}

absl::StatusOr<Communicator::Ticket> StagedCommunicator::Start(const Collective& collective, const void* input,
                                                               void* output, const Call& call) {
  RETURN_IF_ERROR(CheckOperands(collective, input, output, call, rank(), size()));
  if (call.stream != device_.stream()) {
    return InvalidArgument() << "`" << call.label << "` was started in another stream than that of " << device_.name();
  }
  const bool is_moved = !call.compared_only;
  const size_t in_bytes = is_moved && ReadsInput(collective, rank()) ? InputBytes(collective, size()) : 0;
  StartedCollective entry;
  entry.device_output = static_cast<std::byte*>(output);
  entry.output_bytes = is_moved ? OutputBytes(collective, size()) : 0;
  ASSIGN_OR_RETURN(entry.input, TakePinned(in_bytes, call.label));
  if (input != output || in_bytes != entry.output_bytes) {
    ASSIGN_OR_RETURN(entry.output, TakePinned(entry.output_bytes, call.label));
  }
  if (in_bytes > 0) {
    RETURN_IF_ERROR(device_.CopyToHost(entry.in(), static_cast<const std::byte*>(input), in_bytes));
  }
  const Ticket ticket{next_ticket_++};
  std::byte *const in = entry.in(), *const out = entry.out();
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->started.emplace(ticket.id, std::move(entry));
  }
  RETURN_IF_ERROR(Queue([collective, in, out, id = ticket.id, label = std::string(call.label),
                         on_host = call](Shared& shared) mutable -> absl::Status {
    on_host.label = label;
    on_host.stream = nullptr;
    ASSIGN_OR_RETURN(const Ticket of_host, shared.host.Start(collective, in, out, on_host));
    const std::lock_guard<std::mutex> lock(shared.mutex);
    shared.started.at(id).ticket = of_host;
    return absl::OkStatus();
  }));
  return ticket;
}

absl::Status StagedCommunicator::Wait(Ticket ticket, Stream* stream) {
  std::byte *from, *to;
  size_t bytes;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    const auto found = shared_->started.find(ticket.id);
    if (found == shared_->started.end() || found->second.waited) {
      return FailedPrecondition() << "ticket " << ticket.id << " is not in flight";
    }
    if (stream != device_.stream())
      return InvalidArgument() << "a wait in another stream than " << device_.name() << "'s";
    StartedCollective& entry = found->second;
    entry.waited = true;
    from = entry.out(), to = entry.device_output, bytes = entry.output_bytes;
  }
  RETURN_IF_ERROR(Queue([id = ticket.id](Shared& shared) -> absl::Status {
    std::unique_lock<std::mutex> lock(shared.mutex);
    const auto found = shared.started.find(id);
    lock.unlock();
    RETURN_IF_ERROR(shared.host.Wait(found->second.ticket));
    lock.lock();
    // A later user of the memory lets the device write to it only after the copy below has read it.
    for (auto* memory : {&found->second.input, &found->second.output}) {
      if (*memory != nullptr) shared.idle.push_back(std::move(*memory));
    }
    shared.started.erase(found);
    return absl::OkStatus();
  }));
  return bytes > 0 ? device_.CopyToDevice(to, from, bytes) : absl::OkStatus();
}

// --- Calls that are not queued ------------------------------------------------------------------------------------

// Waits until the queued functions have run. The host's communicator is used by one thread at a time, and by all ranks
// in the same order.
absl::Status StagedCommunicator::AwaitQueued() {
  const auto all_ran = [this] {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return shared_->ran == queued_;
  };
  if (all_ran()) return absl::OkStatus();
  RETURN_IF_ERROR(device_.Synchronize());
  return all_ran() ? absl::OkStatus() : shared_->Dropped();
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> StagedCommunicator::Allocate(size_t bytes, std::string_view label) {
  RETURN_IF_ERROR(AwaitQueued());
  RETURN_IF_ERROR(host_.Allocate(0, label).status());  // a collective call: all ranks make it
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, device_.Allocate(bytes, label));
  return std::make_unique<StagedMemory>(std::move(memory));
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> StagedCommunicator::AllocateShared(size_t, std::string_view label) {
  return FailedPrecondition() << "`" << label << "`: the memory of " << device_.name()
                              << " cannot be shared between ranks";
}

absl::Status StagedCommunicator::Barrier(std::string_view label) {
  RETURN_IF_ERROR(AwaitQueued());
  return host_.Barrier(label);
}

absl::StatusOr<std::vector<std::string>> StagedCommunicator::AllGatherBytes(std::string_view bytes,
                                                                            std::string_view label) {
  RETURN_IF_ERROR(AwaitQueued());
  return host_.AllGatherBytes(bytes, label);
}

absl::StatusOr<std::unique_ptr<Communicator>> StagedCommunicator::Split(int color, std::string_view label) {
  RETURN_IF_ERROR(AwaitQueued());
  ++splits_;
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part, host_.Split(color, label));
  return std::unique_ptr<Communicator>(new StagedCommunicator(std::move(part), device_, runs_));
}

}  // namespace lockstep
