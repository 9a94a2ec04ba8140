#include "runtime/comm/in_process.h"

#include <atomic>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "runtime/comm/network/socket_links.h"
#include "runtime/comm/rank_communicator.h"
#include "runtime/process/process.h"

namespace lockstep {
namespace {

// Returns each rank's links to the ranks of other groups, over the loopback interface.
absl::StatusOr<std::vector<std::unique_ptr<Links>>> CreateLinks(int n, const std::vector<int>& group_begins) {
  std::vector<std::unique_ptr<Links>> links(n);
  if (group_begins.size() == 1) return links;
  std::vector<std::shared_ptr<SocketListener>> listeners;
  std::vector<ListenerInfo> places;
  for (int rank = 0; rank < n; ++rank) {
    ASSIGN_OR_RETURN(std::shared_ptr<SocketListener> listener, SocketListener::Create("lo"));
    places.push_back(listener->info());
    listeners.push_back(std::move(listener));
  }
  for (int rank = 0; rank < n; ++rank) {
    ASSIGN_OR_RETURN(links[rank], CreateSocketLinks(std::move(listeners[rank]), rank, places, group_begins));
  }
  return links;
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcess(int n,
                                                                           const Communicator::Options& options) {
  if (n < 1) return InvalidArgument() << "a world of " << n << " ranks";
  return CreateInProcessGroups(n, {0}, options);
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcessGroups(int n,
                                                                                 const std::vector<int>& group_begins,
                                                                                 const Communicator::Options& options,
                                                                                 const RoutePolicy& policy,
                                                                                 const AroundLinks& around) {
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Links>> links, CreateLinks(n, group_begins));
  for (int r = 0; around != nullptr && r < n; ++r) links[r] = around(r, std::move(links[r]));
  const std::vector<std::string> hosts(n, HostName());
  static std::atomic<uint32_t> worlds{0};  // the number of worlds in this process
  const uint32_t number = worlds.fetch_add(1);
  std::vector<std::unique_ptr<Communicator>> world;
  for (size_t g = 0; g < group_begins.size(); ++g) {
    const int first = group_begins[g];
    const int size = (g + 1 < group_begins.size() ? group_begins[g + 1] : n) - first;
    LOCKSTEP_CHECK(size >= 1) << "group " << g << " of ranks is empty";
    // Shared by the ranks' communicators; the last one frees it.
    ASSIGN_OR_RETURN(std::shared_ptr<Segment> memory, Segment::CreatePrivate(ControlBlock::Bytes(size)));
    const ControlBlock block = ControlBlock::Initialize(memory->data(), size);
    for (int i = 0; i < size; ++i) block.rank(i).presence.store(Presence::kHere);
    for (int i = 0; i < size; ++i) {
      GroupConfig config{.keep = memory,
                         .block = block,
                         .index = i,
                         .first_rank = first,
                         .one_process = true,
                         .hosts = hosts,
                         .world = number,
                         .on_leave = {}};
      ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rank,
                       RankCommunicator::Create(std::move(config), std::move(links[first + i]),
                                                n == 1 ? "single" : "in_process", options, policy));
      world.push_back(std::move(rank));
    }
  }
  return world;
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateSingle() {
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Communicator>> world, CreateInProcess(1));
  return std::move(world[0]);
}

}  // namespace lockstep
