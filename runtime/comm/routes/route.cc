#include "runtime/comm/routes/route.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/comm/collective/reduce.h"

namespace lockstep {
namespace {

constexpr size_t kMostBytes = 256 * 1024, kLeastBytes = 32 * 1024;  // of a chunk, because each message has a cost
constexpr size_t kFewestBytes = 64;
constexpr uint64_t kChunksInShare = 8;     // of a rank, so that they overlap
constexpr size_t kPartBytes = 128 * 1024;  // for halving: the largest part in the last exchange

uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

size_t RoundUpShare(uint64_t bytes) { return DivideUp(bytes, kFewestBytes) * kFewestBytes; }

int Log2(int power) {
  int log = 0;
  while (power >>= 1) ++log;
  return log;
}

}  // namespace

std::string_view RouteName(Route route) {
  switch (route) {
    case Route::kChain: return "chain";
    case Route::kOwner: return "owner";
    case Route::kAll: return "all";
    case Route::kRing: return "ring";
    case Route::kHalving: return "halving";
    case Route::kPair: return "pair";
  }
  return "?";
}

std::optional<Route> RouteNamed(std::string_view name) {
  for (const Route route : kRoutes) {
    if (RouteName(route) == name) return route;
  }
  return std::nullopt;
}

bool CanGo(Route route, const CollectiveTraits& traits) {
  if (!traits.moves_data) return route == Route::kAll || route == Route::kChain;
  if (traits.is_direct()) return route == Route::kPair;
  switch (route) {
    case Route::kChain: return true;
    case Route::kOwner: return traits.reduces;
    case Route::kAll: return !traits.reduces || !traits.scatters;  // no other rank needs it
    case Route::kRing: return traits.reduces || traits.gathers;
    case Route::kHalving: return traits.reduces && !traits.scatters;
    case Route::kPair: return false;
  }
  return false;
}

size_t PartialSize(Route route, DType dtype, ReduceKind kind) {
  // This halves the size of bf16 on the wire. f16 might overflow. If each group is one rank, no precision is lost.
  const bool rounds = dtype == DType::kBF16 && (route == Route::kOwner || route == Route::kAll);
  return rounds ? SizeOf(dtype) : AccumulatorSize(dtype, kind);
}

int PowerOfTwoBelow(int groups) {
  int power = 1;
  while (2 * power <= groups) power *= 2;
  return power;
}

std::vector<int> PeerGroups(Route route, int group, int groups) {
  std::vector<int> peers;
  const int power = PowerOfTwoBelow(groups), pairs = groups - power;
  // For halving: the number among the groups that take part, -1 for others.
  const auto place = [&](int g) { return g >= 2 * pairs ? g - pairs : g % 2 == 1 ? g / 2 : -1; };
  const auto swaps = [&](int a, int b) {
    if (a < 0 || b < 0) return false;
    return PowerOfTwoBelow(std::max(1, a ^ b)) == (a ^ b);
  };
  for (int g = 0; g < groups; ++g) {
    if (g == group) continue;
    const int distance = std::abs(g - group);
    bool is_peer = true;
    if (route == Route::kChain) is_peer = distance == 1;
    if (route == Route::kRing) is_peer = distance == 1 || distance == groups - 1;
    if (route == Route::kHalving) is_peer = distance == 1 || swaps(place(group), place(g));
    if (is_peer) peers.push_back(g);
  }
  return peers;
}

ChunkLimits ChunkLimitsOf(Route route, uint64_t bytes, int groups, int largest_group) {
  const auto ranks = static_cast<uint64_t>(groups) * static_cast<uint64_t>(largest_group);
  if (route == Route::kHalving) {
    const size_t most = kPartBytes * static_cast<size_t>(PowerOfTwoBelow(groups));
    const uint64_t share = std::max<uint64_t>(kLeastBytes, DivideUp(bytes, static_cast<uint64_t>(largest_group)));
    return {most, std::min<size_t>(most, RoundUpShare(share))};
  }
  if (route != Route::kOwner && route != Route::kRing) return {kMostBytes, kLeastBytes};
  // Equally many for each rank.
  const uint64_t share = std::max<uint64_t>(1, DivideUp(bytes, ranks));
  const uint64_t wanted = std::clamp<uint64_t>(share / kChunksInShare, kLeastBytes, kMostBytes);
  const size_t chunk = RoundUpShare(DivideUp(share, DivideUp(share, wanted)));
  return {chunk, chunk};
}

Traffic TrafficOf(Route route, CollectiveOp op, uint64_t bytes, int groups, int ranks_a_group, int widening) {
  if (groups < 2) return {};
  const CollectiveTraits traits = TraitsOf(op);
  const auto others = static_cast<uint64_t>(groups - 1), wide = static_cast<uint64_t>(widening);
  // If each group has a share, it sends its own share to all others, or sends each of them their share.
  const uint64_t in_shares = DivideUp(bytes * others, static_cast<uint64_t>(groups));
  const auto ranks = static_cast<uint64_t>(groups) * static_cast<uint64_t>(ranks_a_group);
  const ChunkLimits limits = ChunkLimitsOf(route, bytes, groups, ranks_a_group);
  const uint64_t chunk = std::clamp<uint64_t>(bytes / (kChunksInShare * ranks), limits.least, limits.most);
  // The number of chunks that a rank carries.
  const double chunks = static_cast<double>(DivideUp(DivideUp(bytes, chunk), static_cast<uint64_t>(ranks_a_group)));
  const double share = static_cast<double>(others) / groups;
  const bool both_ways = traits.reduces && !traits.scatters;
  switch (route) {
    case Route::kChain: {
      const bool down_too = traits.reduces || !traits.moves_data;
      // Groups in the middle send partial results up and results down.
      const uint64_t sent = traits.reduces ? (groups > 2 ? wide + 1 : wide) * bytes : bytes;
      return {(down_too ? 2 : 1) * (groups - 1), sent, traits.reduces ? 2 * chunks : chunks,
              (others - 1) * std::min(chunk, bytes)};
    }
    case Route::kOwner:
      if (!both_ways) return {1, wide * in_shares, share * chunks};
      return {2, (wide + 1) * in_shares, 2 * share * chunks};
    case Route::kAll:
      if (traits.gathers) return {1, in_shares, share * chunks};
      return {1, (traits.reduces ? wide : 1) * bytes * others, std::max(1.0, chunks) * static_cast<double>(others)};
    case Route::kRing:
      if (!both_ways) return {groups - 1, (traits.reduces ? wide : 1) * in_shares, share * chunks};
      return {2 * (groups - 1), (wide + 1) * in_shares, 2 * share * chunks};
    case Route::kHalving: {
      const int power = PowerOfTwoBelow(groups), rounds = 2 * Log2(power);
      const uint64_t swapped = (wide + 1) * (bytes - bytes / static_cast<uint64_t>(power));
      if (power == groups) return {rounds, swapped, rounds * chunks};
      return {rounds + 2, swapped + bytes, (rounds + 1) * chunks};
    }
    case Route::kPair:
      if (traits.to_root) return {1, bytes / static_cast<uint64_t>(groups), chunks / groups};
      if (traits.from_root) return {1, in_shares, share * chunks};
      return {1, static_cast<uint64_t>(ranks_a_group) * (traits.permutes ? bytes : in_shares), share * chunks};
  }
  return {};
}

double Seconds(const Traffic& traffic, Route route, int groups, const NetworkCosts& costs) {
  const bool to_all = groups > 2 && (route == Route::kOwner || route == Route::kAll || route == Route::kPair);
  const double byte = to_all ? costs.byte_to_all : costs.byte_to_neighbour;
  return traffic.messages * costs.latency + traffic.sent * costs.message +
         static_cast<double>(traffic.bytes + traffic.filling) * byte;
}

}  // namespace lockstep
