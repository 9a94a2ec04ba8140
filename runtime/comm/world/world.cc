#include "runtime/comm/world/world.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/status.h"
#include "runtime/comm/measure_network.h"
#include "runtime/comm/network/socket_links.h"
#include "runtime/comm/network/sockets.h"
#include "runtime/comm/rank_communicator.h"
#include "runtime/comm/shared_memory.h"
#include "runtime/process/process.h"
#include "runtime/record/align_clocks.h"
#include "runtime/record/clock.h"
#include "runtime/record/job_folder.h"
#include "runtime/record/recorder.h"

namespace lockstep {
namespace {

struct RankFacts {
  char host[kHostBytes] = {};
  char machine[256] = {};  // equal on ranks that can share memory
  int32_t process = 0;
  WorldOptions::BetweenHosts between_hosts = {};
  uint8_t in_rank_order = 0;
  WorldOptions::Routes routes = {};
  bool SharesHostWith(const RankFacts& other) const {
    return std::strcmp(host, other.host) == 0 && std::strcmp(machine, other.machine) == 0;
  }
};

// A host is a booted kernel with a name and a namespace of process numbers (containers of one machine may have
// different ones).
RankFacts FactsOfThisRank(const WorldOptions& options) {
  RankFacts facts{.process = getpid()};
  facts.between_hosts = options.between_hosts;
  facts.in_rank_order = options.communicator.in_rank_order;
  facts.routes = options.routes;
  CopyText(HostName(), facts.host, sizeof(facts.host));
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string machine;
  std::getline(boot, machine);
  char processes[128] = {};
  if (readlink("/proc/self/ns/pid", processes, sizeof(processes) - 1) > 0) machine += processes;
  CopyText(machine, facts.machine, sizeof(facts.machine));
  return facts;
}

// The location of a rank's shared memory.
struct MemoryFacts {
  int32_t process = 0;
  int32_t descriptor = -1;
  uint64_t nonce = 0;
};

MemoryFacts FactsOf(const absl::StatusOr<std::shared_ptr<Segment>>& segment) {
  if (!segment.ok()) return {};
  return {.process = getpid(), .descriptor = (*segment)->descriptor(), .nonce = (*segment)->nonce()};
}

// Returns the first rank of each run of ranks that share a host, with at most `max_group` ranks. A rank that is `apart`
// forms its own group.
std::vector<int> GroupBegins(const std::vector<RankFacts>& facts, const std::vector<uint8_t>& apart, int max_group) {
  std::vector<int> begins;
  for (int r = 0; r < static_cast<int>(facts.size()); ++r) {
    const bool full = !begins.empty() && max_group > 0 && r - begins.back() >= max_group;
    if (r == 0 || full || apart[r] || apart[r - 1] || !facts[r].SharesHostWith(facts[r - 1])) begins.push_back(r);
  }
  return begins;
}

struct Range {
  int first, end;
};

Range GroupOf(int rank, const std::vector<int>& begins, int size) {
  size_t group = begins.size() - 1;
  while (begins[group] > rank) --group;
  return {begins[group], group + 1 < begins.size() ? begins[group + 1] : size};
}

// Returns 1 for each rank of a host that shares no memory with its neighbours, because one of them cannot open
// another's memory: different users, user namespaces or process namespaces, or a /proc that hides processes.
absl::StatusOr<std::vector<uint8_t>> RanksApart(Introduction& introduction, const std::vector<RankFacts>& facts,
                                                int max_group) {
  const int rank = introduction.rank(), size = introduction.size();
  const std::vector<int> begins = GroupBegins(facts, std::vector<uint8_t>(size, 0), max_group);
  const Range group = GroupOf(rank, begins, size);
  const absl::StatusOr<std::shared_ptr<Segment>> probe = Segment::CreateShared(1);
  ASSIGN_OR_RETURN(const std::vector<MemoryFacts> all, GatherFacts(introduction, FactsOf(probe)));
  absl::Status reach = probe.status();
  for (int r = group.first; r < group.end && reach.ok(); ++r) {
    if (r != rank) reach = Segment::Open(all[r].process, all[r].descriptor, all[r].nonce).status();
  }
  ASSIGN_OR_RETURN(std::vector<uint8_t> apart, GatherFacts(introduction, static_cast<uint8_t>(!reach.ok())));
  for (int begin : begins) {
    const Range range = GroupOf(begin, begins, size);
    const auto failed = std::find(apart.begin() + range.first, apart.begin() + range.end, 1);
    if (failed == apart.begin() + range.end) continue;
    static std::atomic<bool> said{false};  // by this process
    if (failed - apart.begin() == rank && !said.exchange(true)) {
      std::fprintf(
          stderr,
          "lockstep: ranks %d to %d on host %s share no memory, and exchange messages as if on several hosts, which "
          "is slower: rank %d %s\n",
          range.first, range.end - 1, facts[rank].host, rank, std::string(reach.message()).c_str());
    }
    std::fill(apart.begin() + range.first, apart.begin() + range.end, 1);
  }
  return apart;
}

struct Outcome {
  int32_t code = 0;  // absl::StatusCode
  char message[512] = {};
};

// Returns OK if `mine` is OK on every rank, otherwise the first error, the same on all ranks.
absl::Status AgreeOnOutcome(Introduction& introduction, const absl::Status& mine) {
  Outcome outcome{.code = static_cast<int32_t>(mine.code())};
  CopyText(std::string_view(mine.message().data(), mine.message().size()), outcome.message, sizeof(outcome.message));
  ASSIGN_OR_RETURN(const std::vector<Outcome> all, GatherFacts(introduction, outcome));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].code == 0) continue;
    return absl::Status(static_cast<absl::StatusCode>(all[r].code),
                        "rank " + std::to_string(r) + ": " + all[r].message);
  }
  return absl::OkStatus();
}

absl::Status CheckSameOptions(const std::vector<RankFacts>& facts) {
  const auto differ = [&](size_t rank, const char* option, const char* on_first, const char* on_rank) {
    return FailedPrecondition() << option << " is " << on_first << " on rank 0, and " << on_rank << " on rank " << rank
                                << " on host " << facts[rank].host;
  };
  const auto transport = [](const RankFacts& rank) {
    return rank.between_hosts == WorldOptions::BetweenHosts::kTcp ? "tcp" : "mpi";
  };
  const auto order = [](const RankFacts& rank) { return rank.in_rank_order ? "rank" : "any"; };
  const auto routes = [](const RankFacts& rank) {
    return rank.routes == WorldOptions::Routes::kMeasured ? "measured" : "default";
  };
  const RankFacts& first = facts[0];
  for (size_t r = 1; r < facts.size(); ++r) {
    if (facts[r].between_hosts != first.between_hosts)
      return differ(r, "between_hosts", transport(first), transport(facts[r]));
    if (facts[r].in_rank_order != first.in_rank_order) return differ(r, "order", order(first), order(facts[r]));
    if (facts[r].routes != first.routes) return differ(r, "routes", routes(first), routes(facts[r]));
  }
  return absl::OkStatus();
}

// Sets `control` to the shared state of a group: its first rank creates it and publishes its location, and the others
// open it. An error of this rank alone is in `control`; the function returns errors of the exchange.
absl::Status ShareControlBlock(Introduction& introduction, int first, int ranks,
                               absl::StatusOr<std::shared_ptr<Segment>>& control) {
  MemoryFacts where;
  if (introduction.rank() == first) {
    control = CreateSharedControlBlock(ranks);
    where = FactsOf(control);
  }
  ASSIGN_OR_RETURN(const std::vector<MemoryFacts> all, GatherFacts(introduction, where));
  if (introduction.rank() != first)
    control = Segment::Open(all[first].process, all[first].descriptor, all[first].nonce);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateWorld(Introduction& introduction, const WorldOptions& options,
                                                          WorldKind kind) {
  const int rank = introduction.rank(), size = introduction.size();
  ASSIGN_OR_RETURN(const std::vector<RankFacts> facts, GatherFacts(introduction, FactsOfThisRank(options)));
  RETURN_IF_ERROR(CheckSameOptions(facts));
  // Before this rank records anything. `lockstep status` and traces then show the ranks together.
  if (size > 1) NameThisJob(std::string("job-") + facts[0].host + "-" + std::to_string(facts[0].process));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> apart, RanksApart(introduction, facts, options.max_group));
  const std::vector<int> begins = GroupBegins(facts, apart, options.max_group);
  const auto [first, end] = GroupOf(rank, begins, size);
  const int ranks = end - first;

  absl::StatusOr<std::shared_ptr<Segment>> control(nullptr);
  RETURN_IF_ERROR(ShareControlBlock(introduction, first, ranks, control));
  absl::Status mine = control.status();
  const bool by_mpi = begins.size() > 1 && options.between_hosts == WorldOptions::BetweenHosts::kMpi;
  const bool by_sockets = begins.size() > 1 && !by_mpi;
  absl::StatusOr<std::unique_ptr<Links>> links(nullptr);
  if (mine.ok() && by_mpi) {
    links = kind.links ? kind.links(begins) : InvalidArgument() << "between_hosts is mpi, but the ranks met without it";
    mine = links.status();
  }
  absl::StatusOr<std::shared_ptr<SocketListener>> listener(nullptr);
  const std::string interfaces = InterfacesOfEnvironment();
  if (by_sockets) {
    listener = SocketListener::Create(interfaces);
    if (mine.ok()) mine = listener.status();
  }
  RETURN_IF_ERROR(AgreeOnOutcome(introduction, mine));  // no rank opens anything after this

  static std::atomic<uint32_t> worlds{0};  // the number of worlds in this process
  GroupConfig config{.keep = *control,
                     .block = ControlBlock((*control)->data(), ranks),
                     .index = rank - first,
                     .first_rank = first,
                     .one_process = false,
                     .hosts = {},
                     .world = worlds.fetch_add(1),
                     .on_leave = std::move(kind.on_leave)};
  for (const RankFacts& fact : facts) config.hosts.push_back(fact.host);
  if (by_sockets) {
    ASSIGN_OR_RETURN(std::vector<ListenerInfo> places, GatherFacts(introduction, (*listener)->info()));
    ASSIGN_OR_RETURN(links, CreateSocketLinks(*std::move(listener), rank, std::move(places), begins));
  }
  if (*links != nullptr && options.around_links) links = options.around_links(*std::move(links));
  absl::StatusOr<std::unique_ptr<RankCommunicator>> communicator =
      RankCommunicator::Create(std::move(config), *std::move(links), kind.transport, options.communicator,
                               {.preferred = options.preferred_route});
  // No rank continues, and possibly fails, before all ranks are ready: creation succeeds on all ranks or on none.
  RETURN_IF_ERROR(AgreeOnOutcome(introduction, communicator.status()));
  if (begins.size() > 1) {
    ASSIGN_OR_RETURN(const ClockOffset clock, AlignClocks(**communicator, RecordNow));
    (*communicator)->recorder()->SetClockAhead(clock.ahead);
    if (options.routes == WorldOptions::Routes::kMeasured && !options.preferred_route) {
      RETURN_IF_ERROR(
          ChooseRoutes(**communicator, by_mpi ? "mpi" : "tcp", by_mpi ? "" : interfaces, options.cache_folder));
    }
  }
  return communicator;
}

}  // namespace lockstep
