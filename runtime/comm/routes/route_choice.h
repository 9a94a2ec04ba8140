// The choice of a route (route.h) for a collective: the one with the lowest cost on this network. The choice depends
// only on values that are equal on all ranks, so it is equal on all ranks. It influences the bits of a sum. Pure
// functions; any thread.
//
//   op               routes that are compared         in rank order
//   all_reduce       all, owner, ring, halving        all, owner if each group is one rank; otherwise chain
//   reduce_scatter   owner, ring                      owner if each group is one rank; otherwise chain
//   all_gather       all, ring
//   broadcast        all, chain
//   all_to_all, permute, gather, scatter: pair. Collectives that move no data: all, or chain if there are many groups.
//
// Measured costs vary between measurements. So that this seldom changes bits, a route with another order of additions
// than all and owner (which have the same) must be a quarter faster than the better of them. With two groups, costs
// have no influence: there is one route for each op.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collective.h"
#include "runtime/comm/routes/route.h"

namespace lockstep {

// Equal on all ranks.
struct RoutePolicy {
  NetworkCosts costs = {};
  // The route that is taken whenever it is possible and keeps the requested order of additions, whatever its cost. For
  // tests and measurements.
  std::optional<Route> preferred = {};
  // If true, the preferred route may have any order of additions. For measurements, whose sums are not used.
  bool in_any_order = false;
};

// The inputs of the choice besides the collective.
struct RouteOptions {
  int groups = 1;
  int largest_group = 1;       // ranks
  bool in_rank_order = false;  // additions must be in rank order
  RoutePolicy policy = {};
};

// Returns the route of the collective. `world_size` is the number of ranks.
Route RouteOf(const Collective& collective, int world_size, const RouteOptions& options);

// A range of sizes in bytes of the operand or the result, whichever is larger, up to the beginning of the next range.
struct RouteRange {
  uint64_t from = 0;
  Route route = Route::kAll;
};
// Returns the routes of f32 for all sizes up to 1 GiB, ascending from 0.
std::vector<RouteRange> RoutesBySize(CollectiveOp op, const RouteOptions& options);

}  // namespace lockstep
