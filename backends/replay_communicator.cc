#include "backends/replay_communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/status.h"
#include "runtime/buffer.h"

namespace lockstep {
namespace {

class HostBytes final : public RegisteredMemory {
 public:
  static std::unique_ptr<RegisteredMemory> Make(size_t bytes) {
    const size_t size = AlignUp(std::max<size_t>(bytes, 1));
    auto* const data = static_cast<std::byte*>(::operator new(size, std::align_val_t(kBufferAlignment)));
    std::memset(data, 0, size);
    return std::unique_ptr<RegisteredMemory>(new HostBytes(data, bytes));
  }
  ~HostBytes() override { ::operator delete(data(), std::align_val_t(kBufferAlignment)); }

 private:
  using RegisteredMemory::RegisteredMemory;
};

// Returns the ranks of the world, by the rank whose part they compute.
std::vector<int> Shifted(int size, int shift) {
  std::vector<int> members;
  for (int role = 0; role < size; ++role) members.push_back((role + shift) % size);
  return members;
}

int RoleOf(int rank, const std::vector<int>& members) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

}  // namespace

// All ranks count as ranks of one host, since no data moves between hosts.
ReplayCommunicator::ReplayCommunicator(Communicator& world, std::vector<int> members, int rank,
                                       CollectiveOutputs& outputs)
    : Communicator(rank, std::vector<std::string>(members.size(), world.host(world.rank())), "replay",
                   {.timeout = world.timeout()}),
      world_(world),
      members_(std::move(members)),
      outputs_(outputs) {}

ReplayCommunicator::ReplayCommunicator(Communicator& world, int shift, CollectiveOutputs& outputs)
    : ReplayCommunicator(world, Shifted(world.size(), shift), RoleOf(world.rank(), Shifted(world.size(), shift)),
                         outputs) {}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> ReplayCommunicator::Allocate(size_t bytes, std::string_view) {
  return HostBytes::Make(bytes);
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> ReplayCommunicator::AllocateShared(size_t, std::string_view label) {
  return FailedPrecondition() << label << ": a step that is computed again shares no memory";
}

absl::StatusOr<Communicator::Ticket> ReplayCommunicator::Start(const Collective& collective, const void*, void* output,
                                                               const Call& call) {
  if (call.compared_only || collective.count() == 0) return Ticket();
  if (outputs_.empty()) return Internal() << call.label << ": no output of it was recorded";
  const std::vector<std::byte> recorded = std::move(outputs_.front());
  outputs_.pop_front();
  if (output == nullptr) return Ticket();
  if (recorded.size() != OutputBytes(collective, size()))
    return Internal() << call.label << ": " << recorded.size() << " bytes of its output were recorded";
  std::memcpy(output, recorded.data(), recorded.size());
  return Ticket();
}

absl::Status ReplayCommunicator::Wait(Ticket, Stream*) { return absl::OkStatus(); }

absl::Status ReplayCommunicator::Barrier(std::string_view) { return absl::OkStatus(); }

absl::StatusOr<std::vector<std::string>> ReplayCommunicator::AllGatherBytes(std::string_view bytes,
                                                                            std::string_view label) {
  ASSIGN_OR_RETURN(std::vector<std::string> all, world_.AllGatherBytes(bytes, label));
  std::vector<std::string> ordered;
  for (const int member : members_) ordered.push_back(std::move(all[static_cast<size_t>(member)]));
  return ordered;
}

absl::StatusOr<std::unique_ptr<Communicator>> ReplayCommunicator::Split(int color, std::string_view label) {
  ASSIGN_OR_RETURN(const std::vector<std::string> colors, AllGatherBytes(std::to_string(color), label));
  std::vector<int> members;
  int index = 0;
  for (int role = 0; role < size(); ++role) {
    if (colors[static_cast<size_t>(role)] != std::to_string(color)) continue;
    if (role == rank()) index = static_cast<int>(members.size());
    members.push_back(members_[static_cast<size_t>(role)]);
  }
  return std::unique_ptr<Communicator>(new ReplayCommunicator(world_, std::move(members), index, outputs_));
}

}  // namespace lockstep
