#include "runtime/comm/in_process.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "core/status.h"
#include "runtime/comm/rank_communicator.h"

namespace lockstep {

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcess(int n, const Communicator::Options& options) {
  if (n < 1) return InvalidArgument() << "a world of " << n << " ranks";
  // Shared by the ranks' communicators; the last to go frees it.
  ASSIGN_OR_RETURN(std::shared_ptr<Segment> memory, Segment::CreatePrivate(ControlBlock::Bytes(n)));
  const ControlBlock block = ControlBlock::Initialize(memory->data(), n);
  for (int r = 0; r < n; ++r) block.rank(r).presence.store(Presence::kHere);
  std::vector<std::unique_ptr<Communicator>> world;
  for (int r = 0; r < n; ++r) {
    GroupPlace place{.keep = memory,
                     .block = block,
                     .index = r,
                     .first_rank = 0,
                     .one_process = true,
                     .hosts = std::vector<std::string>(n, HostName())};
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rank,
                     RankCommunicator::Create(std::move(place), nullptr, n == 1 ? "single" : "in_process", options));
    world.push_back(std::move(rank));
  }
  return world;
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateSingle() {
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Communicator>> world, CreateInProcess(1));
  return std::move(world[0]);
}

}  // namespace lockstep
