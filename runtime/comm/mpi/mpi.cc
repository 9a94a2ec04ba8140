#include "runtime/comm/mpi/mpi.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "runtime/comm/in_process.h"
#include "runtime/comm/measure_network.h"
#include "runtime/comm/mpi/mpi_calls.h"
#include "runtime/comm/mpi/mpi_library.h"
#include "runtime/comm/mpi/mpi_links.h"
#include "runtime/comm/mpi/mpi_roles.h"
#include "runtime/comm/mpi/mpi_world.h"
#include "runtime/comm/network/socket_links.h"
#include "runtime/comm/rank_communicator.h"
#include "runtime/comm/shared_memory.h"
#include "runtime/process/clock.h"
#include "runtime/process/process.h"
#include "runtime/record/align_clocks.h"
#include "runtime/record/clock.h"
#include "runtime/record/recorder.h"

namespace lockstep {
namespace {

absl::StatusOr<MpiComm> Duplicate(MpiComm world, absl::Duration limit) {
  MpiErrhandler before{};
  Mpi().Comm_get_errhandler(world, &before);
  Mpi().Comm_set_errhandler(world, Mpi().errors_return);
  auto comm = std::make_shared<MpiComm>(Mpi().comm_null);
  MpiRequest request = Mpi().request_null;
  absl::Status status = MpiStatus(Mpi().Comm_idup(world, comm.get(), &request), "MPI_Comm_idup");
  if (status.ok()) status = AwaitRequest(&request, comm, limit, "MPI_Comm_idup");
  Mpi().Comm_set_errhandler(world, before);
  Mpi().Errhandler_free(&before);
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(MpiStatus(Mpi().Comm_set_errhandler(*comm, Mpi().errors_return), "MPI_Comm_set_errhandler"));
  return *comm;
}

struct RankFacts {
  char host[kHostBytes] = {};
  char machine[256] = {};  // equal on ranks that can share memory
  MpiOptions::BetweenHosts between_hosts = {};
  uint8_t in_rank_order = 0;
  MpiOptions::Routes routes = {};
  bool SharesHostWith(const RankFacts& other) const {
    return std::strcmp(host, other.host) == 0 && std::strcmp(machine, other.machine) == 0;
  }
};

// A host is a booted kernel with a name and a namespace of process numbers (containers of one machine may have
// different ones).
RankFacts FactsOfThisRank(const MpiOptions& options) {
  RankFacts facts;
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
absl::StatusOr<std::vector<uint8_t>> RanksApart(MpiComm comm, int rank, const std::vector<RankFacts>& facts,
                                                int max_group, absl::Duration limit) {
  const int size = static_cast<int>(facts.size());
  const std::vector<int> begins = GroupBegins(facts, std::vector<uint8_t>(size, 0), max_group);
  const Range group = GroupOf(rank, begins, size);
  const absl::StatusOr<std::shared_ptr<Segment>> probe = Segment::CreateShared(1);
  ASSIGN_OR_RETURN(const std::vector<MemoryFacts> all, GatherFacts(comm, size, FactsOf(probe), limit));
  absl::Status reach = probe.status();
  for (int r = group.first; r < group.end && reach.ok(); ++r) {
    if (r != rank) reach = Segment::Open(all[r].process, all[r].descriptor, all[r].nonce).status();
  }
  ASSIGN_OR_RETURN(std::vector<uint8_t> apart, GatherFacts(comm, size, static_cast<uint8_t>(!reach.ok()), limit));
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
absl::Status AgreeOnOutcome(MpiComm comm, int size, const absl::Status& mine, absl::Duration limit) {
  Outcome outcome{.code = static_cast<int32_t>(mine.code())};
  CopyText(std::string_view(mine.message().data(), mine.message().size()), outcome.message, sizeof(outcome.message));
  ASSIGN_OR_RETURN(const std::vector<Outcome> all, GatherFacts(comm, size, outcome, limit));
  for (int r = 0; r < size; ++r) {
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
    return rank.between_hosts == MpiOptions::BetweenHosts::kTcp ? "tcp" : "mpi";
  };
  const auto order = [](const RankFacts& rank) { return rank.in_rank_order ? "rank" : "any"; };
  const auto routes = [](const RankFacts& rank) {
    return rank.routes == MpiOptions::Routes::kMeasured ? "measured" : "default";
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

absl::Status CheckThreadLevel() {
  int level = kMpiThreadSingle;
  Mpi().Query_thread(&level);
  if (level == kMpiThreadMultiple) return absl::OkStatus();
  return FailedPrecondition()
         << "MPI can carry messages between hosts only with MPI_THREAD_MULTIPLE, but another library initialised it "
         << "with thread level " << level << "; create the communicator first, or initialise MPI with that level";
}

// Sets `control` to the shared state of a group: its first rank creates it and publishes its location, and the others
// open it. An error of this rank alone is in `control`; the function returns errors of the exchange.
absl::Status ShareControlBlock(MpiComm comm, int rank, int size, int first, int ranks, absl::Duration limit,
                               absl::StatusOr<std::shared_ptr<Segment>>& control) {
  MemoryFacts where;
  if (rank == first) {
    control = CreateSharedControlBlock(ranks);
    where = FactsOf(control);
  }
  ASSIGN_OR_RETURN(const std::vector<MemoryFacts> all, GatherFacts(comm, size, where, limit));
  if (rank != first) control = Segment::Open(all[first].process, all[first].descriptor, all[first].nonce);
  return absl::OkStatus();
}

// Returns the world of a process that is the only rank. `missing` is the error if a launcher has started several.
absl::StatusOr<std::unique_ptr<Communicator>> CreateWithoutMpi(const absl::Status& missing) {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* const ranks = std::getenv(variable);
    if (ranks == nullptr || std::atoi(ranks) < 2) continue;
    return Annotate(missing, std::string("this process is one of ") + ranks + " ranks (" + variable + ")");
  }
  ASSIGN_OR_RETURN(const std::optional<RoleCounts> roles, RolesOfEnvironment());
  if (roles) return Annotate(missing, "this process is a worker of a job with servers");
  return CreateSingle();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateMpi(const MpiOptions& options) {
  const absl::Duration limit = options.communicator.timeout;
  if (const absl::Status found = OpenMpi(); !found.ok()) return CreateWithoutMpi(found);
  RETURN_IF_ERROR(InitializeMpi());
  ASSIGN_OR_RETURN(MpiComm world, WorldOfWorkers(limit));
  ASSIGN_OR_RETURN(MpiComm comm, Duplicate(world, limit));
  int rank = 0, size = 1;
  Mpi().Comm_rank(comm, &rank);
  Mpi().Comm_size(comm, &size);
  ASSIGN_OR_RETURN(const std::vector<RankFacts> facts, GatherFacts(comm, size, FactsOfThisRank(options), limit));
  RETURN_IF_ERROR(CheckSameOptions(facts));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> apart, RanksApart(comm, rank, facts, options.max_group, limit));
  const std::vector<int> begins = GroupBegins(facts, apart, options.max_group);
  const auto [first, end] = GroupOf(rank, begins, size);
  const int ranks = end - first;

  absl::StatusOr<std::shared_ptr<Segment>> control(nullptr);
  RETURN_IF_ERROR(ShareControlBlock(comm, rank, size, first, ranks, limit, control));
  absl::Status mine = control.status();
  const bool by_mpi = begins.size() > 1 && options.between_hosts == MpiOptions::BetweenHosts::kMpi;
  const bool by_sockets = begins.size() > 1 && !by_mpi;
  if (mine.ok() && by_mpi) mine = CheckThreadLevel();
  absl::StatusOr<std::shared_ptr<SocketListener>> listener(nullptr);
  const char* const interfaces_wanted = std::getenv("LOCKSTEP_INTERFACE");
  const std::string interfaces = interfaces_wanted == nullptr ? "" : interfaces_wanted;
  if (by_sockets) {
    listener = SocketListener::Create(interfaces);
    if (mine.ok()) mine = listener.status();
  }
  RETURN_IF_ERROR(AgreeOnOutcome(comm, size, mine, limit));  // no rank opens anything after this

  static std::atomic<uint32_t> worlds{0};  // the number of worlds in this process
  GroupConfig config{.keep = *control,
                     .block = ControlBlock((*control)->data(), ranks),
                     .index = rank - first,
                     .first_rank = first,
                     .one_process = false,
                     .hosts = {},
                     .world = worlds.fetch_add(1),
                     .on_leave = [](const absl::Status& failure) {
                       if (!failure.ok()) MarkMpiFailed();
                     }};
  for (const RankFacts& fact : facts) config.hosts.push_back(fact.host);
  std::unique_ptr<Links> links;
  if (by_mpi) links = CreateMpiLinks(comm, begins);
  if (by_sockets) {
    ASSIGN_OR_RETURN(std::vector<ListenerInfo> places, GatherFacts(comm, size, (*listener)->info(), limit));
    ASSIGN_OR_RETURN(links, CreateSocketLinks(*std::move(listener), rank, std::move(places), begins));
  }
  if (links != nullptr && options.around_links) links = options.around_links(std::move(links));
  absl::StatusOr<std::unique_ptr<RankCommunicator>> communicator = RankCommunicator::Create(
      std::move(config), std::move(links), "mpi", options.communicator, {.preferred = options.preferred_route});
  // No rank continues, and possibly fails, before all ranks are ready: creation succeeds on all ranks or on none.
  RETURN_IF_ERROR(AgreeOnOutcome(comm, size, communicator.status(), limit));
  if (begins.size() > 1) {
    ASSIGN_OR_RETURN(const ClockOffset clock, AlignClocks(**communicator, RecordNow));
    (*communicator)->recorder()->SetClockAhead(clock.ahead);
    if (options.routes == MpiOptions::Routes::kMeasured && !options.preferred_route) {
      RETURN_IF_ERROR(
          ChooseRoutes(**communicator, by_mpi ? "mpi" : "tcp", by_mpi ? "" : interfaces, options.cache_folder));
    }
  }
  // If MPI carries data, its communicator lives until MPI ends: freeing it is a collective, which a failed world cannot
  // run.
  if (!by_mpi) Mpi().Comm_free(&comm);
  return communicator;
}

absl::StatusOr<std::string> MpiLibraryVersion() {
  RETURN_IF_ERROR(OpenMpi());
  std::string text(kMpiTextBytes, '\0');
  int length = 0;
  if (Mpi().Get_library_version(text.data(), &length) != kMpiSuccess) return "an MPI library of unknown version";
  text.resize(static_cast<size_t>(length));
  return text;
}

}  // namespace lockstep
