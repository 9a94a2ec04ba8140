// Which of the routes of route.h a collective takes: the one that takes least by the costs of the network. The choice
// is the same on all ranks, as it depends on nothing that differs between them, and is part of what decides the bits of
// a sum. Pure functions; any thread.
//
//   op               routes that are compared         in the order of ranks
//   all_reduce       all, owner, ring, halving        all, owner where each group is one rank; else chain
//   reduce_scatter   owner, ring                      owner where each group is one rank; else chain
//   all_gather       all, ring
//   broadcast        all, chain
//   all_to_all, permute, gather, scatter: pair. What moves no data is said to all, unless they are many: chain.
//
// Costs that were measured differ from one measurement to the next. So that bits seldom follow, a route that adds in
// another order than all and owner, which add in the same, has to be a quarter quicker than the better of these. Of two
// groups no costs decide: there is one route for each op.

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
  // Taken wherever it can go and keeps the order of additions that is asked for, whatever it costs: for tests and
  // measurements.
  std::optional<Route> preferred = {};
  // The preferred one is taken whatever order of additions is asked for: for measurements, whose sums nobody wants.
  bool in_any_order = false;
};

// What decides it besides the collective.
struct RouteOptions {
  int groups = 1;
  int largest_group = 1;       // ranks
  bool in_rank_order = false;  // additions have to be
  RoutePolicy policy = {};
};

// `world_size`: ranks.
Route RouteOf(const Collective& collective, int world_size, const RouteOptions& options);

// From so many bytes on, of the operand or of the result, whichever is larger, up to the next one's.
struct RouteRange {
  uint64_t from = 0;
  Route route = Route::kAll;
};
// What is taken for f32 of any size up to 1 GiB, ascending from 0.
std::vector<RouteRange> RoutesBySize(CollectiveOp op, const RouteOptions& options);

}  // namespace lockstep
