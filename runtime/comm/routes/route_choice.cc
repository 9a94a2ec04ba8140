#include "runtime/comm/routes/route_choice.h"

#include <limits>

namespace lockstep {
namespace {

// Messages that only announce a group go to all groups if there are at most this many.
constexpr int kFewGroups = 32;
constexpr double kQuarterQuicker = 4.0 / 3;

bool IsOneRankEach(const RouteOptions& options) { return options.largest_group == 1; }

// Returns true if the additions of a reduction have the requested order.
bool KeepsOrder(Route route, const RouteOptions& options) {
  if (!options.in_rank_order || route == Route::kChain) return true;
  return IsOneRankEach(options) && (route == Route::kAll || route == Route::kOwner);
}

// Returns true if the route is one of those that are compared.
bool IsCompared(Route route, const CollectiveTraits& traits, const RouteOptions& options) {
  const bool has_owner = route == Route::kOwner && !traits.scatters;
  if (options.groups == 2 && (has_owner || route == Route::kRing || route == Route::kHalving)) return false;
  if (route != Route::kChain) return true;
  return traits.from_root || (traits.reduces && options.in_rank_order && !IsOneRankEach(options));
}

bool AddsInOrderOfItsOwn(Route route, const CollectiveTraits& traits) {
  return traits.reduces && (route == Route::kRing || route == Route::kHalving);
}

}  // namespace

Route RouteOf(const Collective& collective, int world_size, const RouteOptions& options) {
  const CollectiveTraits traits = TraitsOf(collective.op);
  if (!traits.moves_data || collective.count() == 0) return options.groups <= kFewGroups ? Route::kAll : Route::kChain;
  if (traits.is_direct()) return Route::kPair;
  const DType dtype = collective.dtype;
  const uint64_t shares = traits.gathers || traits.scatters ? static_cast<uint64_t>(world_size) : 1;
  const uint64_t bytes = shares * static_cast<uint64_t>(collective.count()) * SizeOf(dtype);
  Route best = Route::kChain;
  double least = std::numeric_limits<double>::infinity();
  for (const Route route : {Route::kAll, Route::kOwner, Route::kRing, Route::kHalving, Route::kChain}) {
    if (!CanGo(route, traits)) continue;
    const bool is_preferred = route == options.policy.preferred;
    if (is_preferred && options.policy.in_any_order) return route;
    if (traits.reduces && !KeepsOrder(route, options)) continue;
    if (is_preferred) return route;
    if (!IsCompared(route, traits, options)) continue;
    const size_t widening = traits.reduces ? PartialSize(route, dtype, collective.kind) / SizeOf(dtype) : 1;
    const Traffic traffic =
        TrafficOf(route, collective.op, bytes, options.groups, options.largest_group, static_cast<int>(widening));
    double seconds = Seconds(traffic, route, options.groups, options.policy.costs);
    if (AddsInOrderOfItsOwn(route, traits)) seconds *= kQuarterQuicker;
    if (seconds >= least) continue;
    least = seconds;
    best = route;
  }
  return best;
}

std::vector<RouteRange> RoutesBySize(CollectiveOp op, const RouteOptions& options) {
  constexpr uint64_t kMost = uint64_t{1} << 30;
  const CollectiveTraits traits = TraitsOf(op);
  const auto ranks = static_cast<uint64_t>(options.groups) * static_cast<uint64_t>(options.largest_group);
  const uint64_t unit = 4 * (traits.gathers || traits.scatters ? ranks : 1);  // the bytes of one element for each rank
  const auto route_of = [&](uint64_t units) {
    const Collective collective{.op = op, .dtype = DType::kF32, .counts = {static_cast<int64_t>(units)}};
    return RouteOf(collective, static_cast<int>(ranks), options);
  };
  std::vector<RouteRange> ranges = {{0, route_of(1)}};
  uint64_t below = 1;  // a size with the route of the last range
  for (uint64_t units = 2; units * unit <= kMost; units *= 2) {
    if (route_of(units) == ranges.back().route) {
      below = units;
      continue;
    }
    uint64_t above = units;
    while (above - below > 1) {
      const uint64_t middle = below + (above - below) / 2;
      (route_of(middle) == ranges.back().route ? below : above) = middle;
    }
    ranges.push_back({above * unit, route_of(above)});
    below = units;
  }
  return ranges;
}

}  // namespace lockstep
