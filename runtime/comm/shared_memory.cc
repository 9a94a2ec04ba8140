#include "runtime/comm/shared_memory.h"

#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "runtime/comm/rank_communicator.h"
#include "runtime/process/process.h"

namespace lockstep {

absl::StatusOr<SharedMemoryWorld> SharedMemoryWorld::Create(int n) {
  if (n < 1) return InvalidArgument() << "a world of " << n << " ranks";
  ASSIGN_OR_RETURN(std::shared_ptr<Segment> control, CreateSharedControlBlock(n));
  return SharedMemoryWorld(std::move(control), n);
}

absl::StatusOr<std::unique_ptr<Communicator>> SharedMemoryWorld::Join(int rank, const Communicator::Options& options) {
  if (rank < 0 || rank >= ranks_) return InvalidArgument() << "rank " << rank << " in a world of " << ranks_;
  GroupConfig config{.keep = control_,
                     .block = ControlBlock(control_->data(), ranks_),
                     .index = rank,
                     .first_rank = 0,
                     .one_process = false,
                     .hosts = std::vector<std::string>(ranks_, HostName()),
                     .on_leave = {}};
  return RankCommunicator::Create(std::move(config), nullptr, "shared_memory", options);
}

}  // namespace lockstep
