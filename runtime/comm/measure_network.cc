#include "runtime/comm/measure_network.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/status.h"
#include "runtime/comm/routes/cost.h"

namespace lockstep {
namespace {

constexpr char kLabel[] = "measure the network";
constexpr int64_t kSmall = 64, kProbe = 128 << 10, kMost = 8 << 20;  // bytes
constexpr int kSmallCalls = 9, kLargeCalls = 3;
constexpr double kSecondsOfLarge = 0.02;  // the desired time of a large all_reduce
constexpr double kLeastByte = 1e-12;

// Returns the shortest time of some calls by the route, the one that was disturbed least.
absl::StatusOr<double> TimeBy(RankCommunicator& world, Route route, int64_t bytes, int calls) {
  world.SetRoutes({.preferred = route, .in_any_order = true});
  ASSIGN_OR_RETURN(const std::vector<double> seconds, TimeAllReduce(world, bytes, calls));
  return *std::min_element(seconds.begin(), seconds.end());
}

// Returns rank 0's text on all ranks.
absl::StatusOr<std::string> FromRank0(RankCommunicator& world, const std::string& text) {
  ASSIGN_OR_RETURN(std::vector<std::string> all, world.AllGatherBytes(world.rank() == 0 ? text : "", kLabel));
  return std::move(all[0]);
}

absl::StatusOr<NetworkCosts> MeasureRoutes(RankCommunicator& world) {
  const int groups = world.groups(), ranks = std::max(1, world.size() / groups);
  const auto traffic_of = [&](Route route, int64_t bytes) {
    return TrafficOf(route, CollectiveOp::kAllReduce, static_cast<uint64_t>(bytes), groups, ranks);
  };
  ASSIGN_OR_RETURN(const double to_all, TimeBy(world, Route::kAll, kSmall, kSmallCalls));
  ASSIGN_OR_RETURN(const double around, TimeBy(world, Route::kRing, kSmall, kSmallCalls));
  NetworkCosts costs{.byte_to_all = 0, .byte_to_neighbour = 0};
  // Two equations for the latency of consecutive messages and the cost of each message sent. A message that a rank
  // waits for never takes less than one that is only sent, whatever else the machine did meanwhile.
  const Traffic a = traffic_of(Route::kAll, kSmall), b = traffic_of(Route::kRing, kSmall);
  const double determinant = a.messages * b.sent - b.messages * a.sent;
  const double solved = (to_all * b.sent - around * a.sent) / determinant;
  costs.latency = std::clamp(solved, to_all / (a.messages + a.sent), to_all / a.messages);
  costs.message = (to_all - a.messages * costs.latency) / a.sent;

  // Attributes the remaining time to the bytes.
  const auto byte_of = [&](Route route, int64_t bytes, double seconds) {
    const Traffic traffic = traffic_of(route, bytes);
    return std::max((seconds - Seconds(traffic, route, groups, costs)) / static_cast<double>(traffic.bytes),
                    kLeastByte);
  };
  ASSIGN_OR_RETURN(const double probe, TimeBy(world, Route::kOwner, kProbe, 1));
  const double bytes = kProbe * std::clamp(kSecondsOfLarge / probe, 1.0, double{kMost} / kProbe);
  ASSIGN_OR_RETURN(const std::string size, FromRank0(world, std::to_string(static_cast<int64_t>(bytes))));
  const int64_t large = std::atoll(size.c_str());
  ASSIGN_OR_RETURN(const double by_owner, TimeBy(world, Route::kOwner, large, kLargeCalls));
  ASSIGN_OR_RETURN(const double by_ring, TimeBy(world, Route::kRing, large, kLargeCalls));
  const double byte_to_all = byte_of(Route::kOwner, large, by_owner);
  costs.byte_to_neighbour = byte_of(Route::kRing, large, by_ring);
  costs.byte_to_all = byte_to_all;
  return costs;
}

}  // namespace

bool NeedsCosts(const RankCommunicator& world) { return world.groups() > 2; }

absl::StatusOr<NetworkCosts> MeasureCosts(RankCommunicator& world) {
  absl::StatusOr<NetworkCosts> costs = MeasureRoutes(world);
  world.SetRoutes({});
  return costs;
}

absl::Status ChooseRoutes(RankCommunicator& world, const std::string& transport, const std::string& interfaces,
                          const std::string& folder) {
  if (!NeedsCosts(world)) return absl::OkStatus();
  std::vector<std::string> hosts;
  for (int r = 0; r < world.size(); ++r) hosts.push_back(world.host(r));
  // Ranks of a host may have no shared memory and so form several groups.
  const std::string carrier = transport + " in " + std::to_string(world.groups()) + " groups";
  Network network{
      .cluster = ClusterName(hosts, carrier, interfaces), .hosts = world.groups(), .ranks = world.largest_group()};
  const auto warn = [](const char* what, const absl::Status& status) {
    std::fprintf(stderr, "lockstep: %s: %s\n", what, std::string(status.message()).c_str());
  };
  std::string known;  // the text of the network; empty if it must be measured
  if (world.rank() == 0) {
    const absl::StatusOr<Network> read = ReadNetwork(folder, network.cluster);
    if (read.ok()) known = ToText(*read);
    else if (!absl::IsNotFound(read.status())) warn("the network is measured again", read.status());
  }
  ASSIGN_OR_RETURN(known, FromRank0(world, known));
  if (known.empty()) {
    ASSIGN_OR_RETURN(network.costs, MeasureCosts(world));
    if (world.rank() == 0) {
      if (const absl::Status status = WriteNetwork(folder, network); !status.ok())
        warn("the measured costs of the network are not saved", status);
    }
    ASSIGN_OR_RETURN(known, FromRank0(world, ToText(network)));
  }
  ASSIGN_OR_RETURN(const Network agreed, NetworkOf(known));
  world.SetRoutes({.costs = agreed.costs});
  return absl::OkStatus();
}

}  // namespace lockstep
